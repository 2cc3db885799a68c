// The messages of one collective call over a MessagePort: posted, awaited, and all taken back on failure.
//
// Every message of a call has the same tag, so the k-th message that a rank sends to another in a call meets the k-th
// that the other receives from it, whatever algorithms the two run, and carries the call's record, which the port
// compares. From this follows the rule that all algorithms here keep: the first message of every rank r goes to its
// right neighbour, r + 1, and every rank has received that of its left neighbour before it returns. If the calls of
// any two ranks differ, those of two neighbours differ, so somebody finds out. An algorithm whose own messages do not
// begin so calls greet() first. Plans do so too; their own messages have a step each in the tag, so that those of
// several channels between two ranks do not depend on each other's order (executor/program/inflow.h).
//
// Memory is there before the call has its number (call_memory.h). A call that found none in its course would take its
// messages back one by one, and what comes for the first of them would meet the next, which its sender hears of as a
// mismatch.
//
// A call may run among some of the group's ranks (CallContext::members): neighbours are then those among the members,
// and peers are named by their places. Where a member's left neighbour in the group is on another host and no member,
// it is watched: a receive is posted that the same call never serves. If that rank makes another call, its first
// message comes here, and the call ends with a mismatch.
// The members of two calls may differ in more than that, as where the root of a broadcast takes its leader's place:
// then a message may come that nobody has asked for. Who waits for long looks for one with the tag of its call.
//
// Ownership: the ops are this one's; the memory they point at is the caller's. Thread rule: one thread, that of the
// call.
#pragma once

#include <cstddef>
#include <span>

#include "algorithm/algorithm.h"

namespace tutti {

class NetCall {
 public:
  // Room for `ops` messages at a time, in the call's memory, of which it takes bytes_for(ops).
  NetCall(CallContext& context, std::size_t ops);
  static std::size_t bytes_for(std::size_t ops) noexcept;
  ~NetCall();
  NetCall(const NetCall&) = delete;
  NetCall& operator=(const NetCall&) = delete;

  // Of all messages of a call; what is added for streams of its own must stay below 2^16.
  static std::uint64_t tag_of(const CallRecord& record) noexcept;
  std::uint64_t tag() const noexcept { return tag_; }

  int rank() const noexcept { return context_.rank; }
  int size() const noexcept { return context_.size; }
  int right(int steps = 1) const noexcept { return (context_.rank + steps) % context_.size; }
  int left(int steps = 1) const noexcept {
    return (context_.rank + context_.size - steps % context_.size) % context_.size;
  }
  CallMemory& memory() noexcept { return context_.memory; }

  // Op number `op` must be unused, or awaited since its last use. `peer`: as right() and left() count.
  void send(std::size_t op, int peer, const void* data, std::size_t bytes) noexcept;
  void recv(std::size_t op, int peer, void* data, std::size_t bytes) noexcept;

  // Until the op is done; at once if it is unused. Ends too when another op of the call has failed.
  Outcome wait(std::size_t op) noexcept;
  // Until all are done.
  Outcome finish() noexcept;

  bool finished() const noexcept;

  // What has become of the call so far: a mismatch with the watched rank, or of the failed ops' outcomes the one that
  // explains most, kOk if none has failed.
  Outcome verdict() noexcept;
  // The same, or else a mismatch with a rank whose message of this number belongs to another call. It looks through all
  // messages kept: to be asked now and then.
  Outcome verdict_in_a_wait() noexcept;

  // An empty message to the right and one from the left; finish() awaits them.
  void greet() noexcept;

 private:
  std::size_t watch() const noexcept { return count_ + 2; }
  int rank_of(int peer) const noexcept { return context_.members != nullptr ? context_.members[peer] : peer; }

  CallContext& context_;
  const std::uint64_t tag_;
  const std::size_t count_;
  const std::span<MessageOp> ops_;  // three more than `count_`: two for greet(), one for the watched rank
};

}  // namespace tutti
