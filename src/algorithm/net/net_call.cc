#include "algorithm/net/net_call.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace tutti {
namespace {

// A wait looks up this often to see whether another op of its call has failed meanwhile.
constexpr std::chrono::milliseconds kSlice{50};

constexpr std::size_t kGreetings = 2;

// The step field of the tag stays zero, but for plans: see the head of net_call.h.
constexpr int kStepBits = 16;

bool unused(const MessageOp& op) noexcept {
  // relaxed: only this thread moves an op out of kIdle.
  return op.state.load(std::memory_order_relaxed) == MessageOp::State::kIdle;
}

}  // namespace

NetCall::NetCall(CallContext& context, std::size_t ops)
    : context_(context),
      tag_(tag_of(context.record)),
      count_(ops),
      ops_(context.memory.take<MessageOp>(ops + kGreetings + 1)) {
  std::uninitialized_default_construct(ops_.begin(), ops_.end());
  if (context.watched >= 0) context.port->post_recv(ops_[watch()], context.watched, tag_, nullptr, 0, context.record);
}

std::uint64_t NetCall::tag_of(const CallRecord& record) noexcept {
  return kCollectiveTag | (record.sequence << kStepBits);
}

NetCall::~NetCall() {
  for (MessageOp& op : ops_) {
    if (!unused(op) && !op.done()) context_.port->cancel(op);
  }
  std::destroy(ops_.begin(), ops_.end());
}

std::size_t NetCall::bytes_for(std::size_t ops) noexcept {
  return CallMemory::bytes_of<MessageOp>(ops + kGreetings + 1);
}

void NetCall::send(std::size_t op, int peer, const void* data, std::size_t bytes) noexcept {
  context_.port->post_send(ops_[op], rank_of(peer), tag_, data, bytes, context_.record);
}

void NetCall::recv(std::size_t op, int peer, void* data, std::size_t bytes) noexcept {
  context_.port->post_recv(ops_[op], rank_of(peer), tag_, data, bytes, context_.record);
}

void NetCall::greet() noexcept {
  recv(count_, left(), nullptr, 0);
  send(count_ + 1, right(), nullptr, 0);
}

Outcome NetCall::verdict() noexcept {
  Outcome worst;
  // Nothing else that becomes of it counts: the watched rank may be through with the call and gone.
  if (const MessageOp& op = ops_[watch()]; !unused(op) && op.done() && op.outcome.status == Status::kMismatch) {
    context_.mismatched = op.remote;
    return op.outcome;
  }
  for (std::size_t i = 0; i < count_ + kGreetings; ++i) {
    const MessageOp& op = ops_[i];
    if (unused(op) || !op.done() || weight_of(op.outcome.status) <= weight_of(worst.status)) continue;
    worst = op.outcome;
    if (worst.status == Status::kMismatch) context_.mismatched = op.remote;
  }
  return worst;
}

Outcome NetCall::verdict_in_a_wait() noexcept {
  const Outcome outcome = verdict();
  if (!outcome.ok()) return outcome;
  constexpr std::uint64_t kTags = std::uint64_t{1} << kStepBits;
  const int stranger = context_.port->find_stranger(tag_, tag_ + kTags, context_.record.hash, context_.mismatched);
  return stranger >= 0 ? Outcome{Status::kMismatch, stranger} : kOkOutcome;
}

Outcome NetCall::wait(std::size_t index) noexcept {
  MessageOp& op = ops_[index];
  if (unused(op)) return kOkOutcome;
  for (bool again = false; !op.done(); again = true) {
    Deadline slice = Deadline::after(std::min(kSlice, context_.deadline.timeout()));
    const Outcome waited = context_.port->wait(op, slice, again);
    if (op.done()) break;
    if (Outcome outcome = verdict_in_a_wait(); !outcome.ok()) return outcome;
    if (waited.status == Status::kAborted) return waited;  // by a handler of a signal
    if (context_.deadline.expired()) return {Status::kTimeout, op.peer};
  }
  return op.outcome.ok() ? kOkOutcome : verdict();
}

bool NetCall::finished() const noexcept {
  for (std::size_t i = 0; i < count_ + kGreetings; ++i) {
    if (!unused(ops_[i]) && !ops_[i].done()) return false;
  }
  return true;
}

Outcome NetCall::finish() noexcept {
  for (std::size_t i = 0; i < count_ + kGreetings; ++i) {
    if (Outcome outcome = wait(i); !outcome.ok()) return outcome;
  }
  return kOkOutcome;
}

}  // namespace tutti
