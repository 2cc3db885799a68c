#include "algorithm/net/net_call.h"

#include <algorithm>
#include <chrono>

namespace tutti {
namespace {

// A wait looks up this often to see whether another op of its call has failed meanwhile.
constexpr std::chrono::milliseconds kSlice{50};

constexpr std::size_t kGreetings = 2;

// The step field of the tag stays zero: see the head of net_call.h.
constexpr int kStepBits = 16;

bool unused(const MessageOp& op) noexcept {
  // relaxed: only this thread moves an op out of kIdle.
  return op.state.load(std::memory_order_relaxed) == MessageOp::State::kIdle;
}

}  // namespace

NetCall::NetCall(CallContext& context, std::size_t ops)
    : context_(context),
      tag_(kCollectiveTag | (context.record.sequence << kStepBits)),
      count_(ops),
      ops_(std::make_unique<MessageOp[]>(ops + kGreetings)) {}

NetCall::~NetCall() {
  for (std::size_t i = 0; i < count_ + kGreetings; ++i) {
    if (!unused(ops_[i]) && !ops_[i].done()) context_.port->cancel(ops_[i]);
  }
}

void NetCall::send(std::size_t op, int peer, const void* data, std::size_t bytes) noexcept {
  context_.port->post_send(ops_[op], peer, tag_, data, bytes, context_.record);
}

void NetCall::recv(std::size_t op, int peer, void* data, std::size_t bytes) noexcept {
  context_.port->post_recv(ops_[op], peer, tag_, data, bytes, context_.record);
}

void NetCall::greet() noexcept {
  recv(count_, left(), nullptr, 0);
  send(count_ + 1, right(), nullptr, 0);
}

// What became of the call: of several failures the one that explains most, for the first one somewhere makes others
// elsewhere, and all may have come in one wait. kOk if no op has failed.
Outcome NetCall::verdict() noexcept {
  const auto weight = [](Status status) noexcept {
    switch (status) {
      case Status::kOk:
        return 0;
      case Status::kPeerFailed:
        return 2;
      case Status::kPeerLeft:
        return 3;
      case Status::kPeerLost:
        return 4;
      case Status::kMismatch:
        return 5;
      default:
        return 1;
    }
  };
  Outcome worst;
  for (std::size_t i = 0; i < count_ + kGreetings; ++i) {
    const MessageOp& op = ops_[i];
    if (unused(op) || !op.done() || weight(op.outcome.status) <= weight(worst.status)) continue;
    worst = op.outcome;
    if (worst.status == Status::kMismatch) context_.mismatched = op.remote;
  }
  return worst;
}

Outcome NetCall::wait(std::size_t index) noexcept {
  MessageOp& op = ops_[index];
  if (unused(op)) return kOkOutcome;
  while (!op.done()) {
    Deadline slice = Deadline::after(std::min(kSlice, context_.deadline.timeout()));
    context_.port->wait(op, slice);
    if (op.done()) break;
    if (Outcome outcome = verdict(); !outcome.ok()) return outcome;
    if (context_.deadline.expired()) return {Status::kTimeout, op.peer};
  }
  return op.outcome.ok() ? kOkOutcome : verdict();
}

Outcome NetCall::finish() noexcept {
  for (std::size_t i = 0; i < count_ + kGreetings; ++i) {
    if (Outcome outcome = wait(i); !outcome.ok()) return outcome;
  }
  return kOkOutcome;
}

}  // namespace tutti
