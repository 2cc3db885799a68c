// The matching engine behind MessagePort: what is posted, what has arrived, what is under way.
//
// Ownership: ops are the callers'; messages without a receive (Arrival) are kept here.
// Thread rule: every member needs the message port's lock. Nothing here sleeps or calls back into user code; ops with
// an on_done are handed out by take_callbacks() for the port to call unlocked.
// Want of memory: what is not noexcept may throw std::bad_alloc in the middle of anything. Then only fail() may follow,
// which takes no memory and ends all; no lock is given up in between.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "channel/farewell.h"
#include "channel/intrusive_list.h"
#include "channel/message_frame.h"
#include "channel/message_port.h"
#include "channel/outbox.h"

namespace tutti {

// A message that has come, or begun to come, before its receive.
struct Arrival {
  enum class Kind : std::uint8_t { kEager, kAnnounced, kLocal, kBlank };

  Kind kind = Kind::kEager;
  bool complete = false;  // eager: the payload is here
  int peer = -1;
  std::uint64_t id = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;
  std::uint64_t order = 0;  // of arrival, over all peers
  CallRecord record;
  std::vector<std::byte> payload;
  MessageOp* op = nullptr;  // local: the send; eager, not complete: the receive that has claimed it
  Arrival* next = nullptr;
  Arrival* prev = nullptr;
};

class MessageEngine {
 public:
  MessageEngine(int rank, std::vector<Transport*> transport_of_peer, PortWaker* waker);
  ~MessageEngine();
  MessageEngine(const MessageEngine&) = delete;

  void post_send(MessageOp& op);
  void post_recv(MessageOp& op);

  // Reads and writes what the links allow. `prefer`: whose link a waiting thread wants looked at most often, or -1.
  bool pass(int prefer);

  // Ends an unfinished op. `quiet`: without its on_done.
  void retract(MessageOp& op, Outcome outcome, bool quiet);
  void fail(Outcome outcome, std::string_view reason = {}, Outcome cause = {}) noexcept;
  const MessagePort::Said& said_by(int peer) const noexcept { return peers_[static_cast<std::size_t>(peer)]->said; }

  Outcome dead(int peer) const noexcept { return peers_[static_cast<std::size_t>(peer)]->dead; }
  void say_left() noexcept;
  // See MessagePort::lost().
  Outcome lost() const noexcept;

  // Peers that unfinished ops wait for, kAnySource among them.
  void awaited(std::vector<int>& peers) const;
  // The first message of those kept with a tag from `first` to below `end` that does not belong to the call of `hash`;
  // null if there is none.
  const Arrival* find_stranger(std::uint64_t first, std::uint64_t end, std::uint32_t hash) const noexcept;

  // Waiting for `peer` has become hopeless: takes what has arrived, then ends the ops.
  void give_up(int peer, Outcome outcome);

  OpQueue take_callbacks() noexcept { return std::exchange(callbacks_, OpQueue{}); }
  // True once after an op ended or the descriptors to wait for changed: then other sleepers must look again.
  bool take_news() noexcept { return std::exchange(news_, false); }
  // The descriptors to wait for, and the number of their last change: a set of another number is not to be slept on.
  std::uint64_t poll_set(std::vector<pollfd>& fds);
  std::uint64_t poll_set_number() const noexcept { return poll_set_number_; }
  void check_links();
  int pending() const noexcept { return pending_; }
  // Whether a pass would find something that no descriptor tells of. Of a link that has come to stand since the
  // descriptors were asked for its transport is yet to tell: not that.
  bool has_input() const noexcept;

 private:
  struct Inbox {
    FrameHeader header;
    std::size_t header_got = 0;
    std::byte* into = nullptr;  // null: the payload is dropped
    std::uint64_t body_left = 0;
    MessageOp* op = nullptr;     // the receive that the payload is for
    Arrival* arrival = nullptr;  // or the message without one
    CallRecord echo;
  };
  struct Peer {
    Transport* transport = nullptr;
    Link* link = nullptr;
    bool rings = false;   // the link has no descriptor
    bool stands = false;  // the link is there, and its transport has told so
    bool polls_for_room = false;
    Outcome dead;            // why nothing goes any more
    MessagePort::Said said;  // by itself, or of it by another
    Outbox out;
    Inbox in;
    OpQueue posted;    // kPosted for this peer
    OpQueue incoming;  // kIncoming
    IntrusiveList<Arrival, &Arrival::next, &Arrival::prev> arrived;
    std::uint64_t taken = 0;  // of its eager messages, in eager_cost
    std::uint64_t bytes_read = 0;
  };

  // Around what is written into, or read out of, a link without a descriptor, and the ring that follows. May be nested.
  class Publication {
   public:
    Publication(MessageEngine& engine, const Peer& peer) noexcept : engine_(peer.rings ? &engine : nullptr) {
      if (engine_ != nullptr && engine_->publications_++ == 0) engine_->waker_->begin_publishing();
    }
    ~Publication() {
      if (engine_ != nullptr && --engine_->publications_ == 0) engine_->waker_->end_publishing();
    }
    Publication(const Publication&) = delete;
    Publication& operator=(const Publication&) = delete;

   private:
    MessageEngine* const engine_;
  };

  Peer& at(int peer) noexcept { return *peers_[static_cast<std::size_t>(peer)]; }

  // Matching.
  bool begin(MessageOp& op);
  MessageOp* find_posted(int peer, std::uint64_t tag) noexcept;
  Arrival* find_arrival(int peer, std::uint64_t tag) noexcept;
  void unpost(MessageOp& op) noexcept;
  bool accept_or_refuse(MessageOp& op, int peer, std::uint64_t id, std::uint64_t bytes, const CallRecord& record);
  void claim(MessageOp& op, Arrival& arrival);
  void grant(MessageOp& op, int peer, std::uint64_t id);
  void post_local(MessageOp& op);
  void note_late_mismatch(int peer, const CallRecord& ours, const CallRecord& theirs);
  Arrival& new_arrival(Arrival::Kind kind, int peer, std::uint64_t id, std::uint64_t tag, std::uint64_t bytes,
                       const CallRecord& record);
  void free_arrival(Arrival& arrival) noexcept;

  // Ending.
  void finish(MessageOp& op, Outcome outcome, bool quiet = false) noexcept;
  void detach_receive(MessageOp& op, bool tell);
  void lose(int peer, Outcome outcome) noexcept;
  void say_farewell(Outcome outcome, std::string_view reason, Outcome cause) noexcept;

  // Links.
  bool open(int peer);
  void change_poll_set() noexcept;
  bool accept_links();
  bool serve(int peer);
  bool flush(int peer) noexcept;
  bool receive(int peer);
  std::size_t read_frame_part(int peer, Peer& p);
  bool begin_body(int peer, Peer& p);
  void end_body(int peer, Peer& p);
  bool begin_message(int peer, Peer& p);
  void on_withdraw(Peer& p, int peer, std::uint64_t id);
  void on_refuse(Peer& p, int peer);
  void end_of(int peer, Status status);
  void take_rest(int peer);
  Outcome heard(int peer, const Farewell& farewell);
  void note_said(int rank, const Farewell& farewell);

  const int rank_;
  const pid_t owner_;  // a forked child says nothing in its parent's name
  PortWaker* const waker_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Transport*> transports_;  // distinct
  std::vector<int> active_;             // peers with a live link
  OpQueue posted_any_;                  // kPosted for any source
  IntrusiveList<MessageOp, &MessageOp::newer, &MessageOp::older> all_;
  OpQueue callbacks_;
  int pending_ = 0;
  std::uint64_t next_order_ = 1;
  std::uint64_t next_arrival_ = 1;
  bool news_ = false;
  int publications_ = 0;  // an answer is written while its question is read
  std::uint64_t poll_set_number_ = 0;
  bool outputs_pending_ = false;  // some outbox may be not idle
  std::uint32_t passes_ = 0;
  std::uint32_t idle_passes_ = 0;
  std::vector<Arrival*> spare_arrivals_;
  std::size_t spare_bytes_ = 0;  // of their payloads
  Outcome failed_;
  std::int64_t failure_heard_ns_ = 0;  // when a peer was first known to have failed
  struct LateMismatch {
    int peer;
    CallRecord ours;
    CallRecord theirs;
  };
  std::optional<LateMismatch> late_mismatch_;
};

}  // namespace tutti
