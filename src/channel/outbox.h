// What one rank still has to write to one peer, and in which order.
//
// Control frames go first, then the first frames of messages in posting order, then granted payloads in the order of
// the grants. A frame once begun is finished before the next.
// Ownership: ops belong to their callers; an op stays queued here until pump() hands it back or retract() is called.
// Thread rule: under the message port's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "channel/intrusive_list.h"
#include "channel/message_frame.h"
#include "channel/message_port.h"

namespace tutti {

using OpQueue = IntrusiveList<MessageOp, &MessageOp::next, &MessageOp::prev>;

class Outbox {
 public:
  Outbox() = default;
  Outbox(const Outbox&) = delete;
  ~Outbox() { clear(); }

  void send(MessageOp& op);
  void control(FrameKind kind, std::uint64_t id);
  void refuse(std::uint64_t id, const CallRecord& ours, const CallRecord& theirs);

  // The peer's answers. One may come before the link has said that all of the first frame is gone: a network has sent
  // the rest by itself. grant() is false for a message that is no longer there.
  bool grant(std::uint64_t id) noexcept;
  MessageOp* find(std::uint64_t id) const noexcept;  // whose first frame the peer may have; null if there is none
  bool acknowledge(std::uint64_t credit) noexcept;   // false if the peer claims what was never sent

  // Takes an unfinished send out; its memory is not read afterwards. `tell`: the peer hears of it.
  void retract(MessageOp& op, bool tell);

  // Forgets everything, for a link that is dead.
  void clear() noexcept;

  bool idle() const noexcept { return !writing_ && control_.empty() && starts_.empty() && granted_.empty(); }

  // Writes until the link takes no more or about `budget` bytes are gone; ops that are complete are appended to
  // `finished`. True if anything was written.
  bool pump(Link& link, std::uint64_t credit, std::size_t budget, OpQueue& finished) noexcept;

 private:
  struct Control {
    FrameHeader header;
    CallRecord echo;  // refusals: the payload
  };

  bool begin_frame(std::uint64_t credit) noexcept;
  void begin_start(MessageOp& op) noexcept;
  void end_frame(OpQueue& finished) noexcept;
  void own_rest_of_body();
  bool writes_start_of(std::uint64_t id) const noexcept;

  bool writing_ = false;
  FrameHeader header_;  // of the frame being written
  std::size_t header_sent_ = 0;
  const std::byte* body_ = nullptr;
  std::size_t body_left_ = 0;
  MessageOp* op_ = nullptr;  // whose frame it is; null for control frames and retracted ops
  CallRecord echo_;
  std::vector<std::byte> owned_;  // the rest of a retracted op's frame

  std::deque<Control> control_;
  OpQueue starts_;     // kStart; blanks among them are ours
  OpQueue announced_;  // kAnnounced
  OpQueue granted_;    // kGranted, but the one whose announcement is being written
  std::uint64_t next_id_ = 1;
  std::uint64_t eager_sent_ = 0;   // in eager_cost
  std::uint64_t eager_taken_ = 0;  // as far as the peer has said
};

}  // namespace tutti
