// The port channels of one rank that lead to other hosts, over messages.
//
// What is sent and received is in inflow.h. Every stream has a few receives posted ahead, in order, each straight into
// the destination; nothing is written there before the sender sends, and it sends when the plan lets it put. A signal
// counts once all messages of its stream before it have landed. Packets land beside their slots and are then stored
// word by word, for whoever awaits them reads the slots meanwhile.
//
// Why it cannot deadlock. A rank posts receives for everything that an invocation brings it, whatever its thread blocks
// wait for, and the message port lets no unreceived message hold up another. So a put completes as soon as its receiver
// has begun the same invocation. Of the ranks that have ended the fewest invocations none waits for one that is behind,
// so they go on as the verifier has shown.
//
// Ownership: owns the message ops; cancelled by close(). Thread rule: one thread, that of the rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "channel/message_port.h"
#include "executor/program/program.h"
#include "executor/program/tables.h"

namespace tutti::executor {

class FarPorts {
 public:
  FarPorts(const Tables& tables, std::int32_t rank);
  ~FarPorts();
  FarPorts(const FarPorts&) = delete;
  FarPorts& operator=(const FarPorts&) = delete;

  // Makes room for a program. To be called once before the first begin() with it.
  void prepare(const Program& program);

  // One call, of any number of invocations. `tag`: of its messages, the stream's number is added. After close() no
  // message touches any memory of the call.
  void open(MessagePort& port, const CallRecord& record, std::uint64_t tag) noexcept;
  void close() noexcept;

  // One invocation: posts the first receives. `bases` as the interpreter's; `counters` by counter of this rank.
  void begin(const Program& program, std::byte* const* bases, CounterWord* counters) noexcept;

  // Sending, by port channel. The data stay as they are until drained().
  bool ready(std::uint32_t channel) noexcept;
  void send(std::uint32_t channel, std::int32_t peer, std::uint32_t stream, const std::byte* data,
            std::int64_t bytes) noexcept;
  bool drained(std::uint32_t channel) noexcept;

  // Takes what has arrived and posts the next receives; true if there was anything.
  bool advance() noexcept;

  // All that this invocation sends and receives is done.
  bool idle() const noexcept { return receiving_ == 0 && sending_ == 0; }
  // What has failed, if anything: the outcome that explains most. kMismatch: `remote` is what the peer called.
  Outcome verdict(CallRecord& remote) const noexcept;
  // For messages about a wait: whom an unfinished message is from or for, -1 if there is none.
  std::int32_t awaited() const noexcept;
  std::string describe() const;

 private:
  static constexpr std::size_t kWindow = 8;  // messages of a stream or channel under way

  struct Window {
    std::unique_ptr<MessageOp[]> ops = std::make_unique<MessageOp[]>(kWindow);
    std::uint64_t begun = 0;  // of the call: op number modulo kWindow
    std::uint64_t ended = 0;

    MessageOp& op(std::uint64_t number) const noexcept { return ops[number % kWindow]; }
    MessageOp& first() const noexcept { return op(ended); }
    bool full() const noexcept { return begun - ended == kWindow; }
  };
  struct Stream {
    Window window;
    std::int32_t peer = -1;
    std::uint32_t number = 0;
    const Inflow* inflow = nullptr;  // of the invocation at hand
    std::uint64_t base = 0;          // window.begun when the invocation began
    std::vector<std::byte> packets;  // kWindow pieces of packet_bytes
    std::size_t packet_bytes = 0;
  };

  Stream& stream_of(const Inflow& inflow);
  void fill(Stream& stream) noexcept;
  bool take(Stream& stream) noexcept;
  void land(Stream& stream, const Arrival& arrival) noexcept;
  bool collect(Window& window) noexcept;
  template <class Visit>
  void each_unfinished(const Visit& visit) const;

  const Tables& tables_;
  const std::int32_t rank_;
  MessagePort* port_ = nullptr;  // while a call is open
  CallRecord record_;
  std::uint64_t tag_ = 0;
  std::vector<Window> outgoing_;                   // by port channel
  std::vector<std::unique_ptr<Stream>> incoming_;  // in no order
  std::vector<Stream*> active_;                    // of the invocation at hand, as Program::inflows()
  std::byte* const* bases_ = nullptr;
  const Pointer* pointers_ = nullptr;
  CounterWord* counters_ = nullptr;
  std::size_t receiving_ = 0;  // arrivals of the invocation that have not been taken
  std::size_t sending_ = 0;    // sends that have not been collected
};

}  // namespace tutti::executor
