#include "algorithm/two_level/two_level_algorithm.h"

#include "algorithm/net/net_algorithms.h"

namespace tutti {
namespace {

// How often a rank that waits on its host drives its messages, to see what it watches for.
constexpr std::int64_t kLookNs = 10'000'000;

class WatchedStep final : public HostChannel::Condition {
 public:
  WatchedStep(CallContext& context, NetCall& net, int place, std::uint64_t value) noexcept
      : context_(context), net_(net), place_(place), value_(value), looked_ns_(now_ns()) {}

  bool holds() noexcept override {
    if (context_.hosts->host->stepped(place_, StepLane::kFilled) >= value_) return true;
    if (const std::int64_t now = now_ns(); now - looked_ns_ >= kLookNs) {
      looked_ns_ = now;
      context_.port->progress();
      seen_ = net_.verdict_in_a_wait();
    }
    return !seen_.ok();
  }
  Outcome seen() const noexcept { return seen_; }

 private:
  CallContext& context_;
  NetCall& net_;
  const int place_;
  const std::uint64_t value_;
  std::int64_t looked_ns_;
  Outcome seen_;
};

}  // namespace

const char* TwoLevelAlgorithm::refusal(const CallShape& shape) const noexcept {
  if (shape.hosts == 1) return "needs ranks on several hosts";
  if (shape.hosts == shape.ranks) return "needs a host with several ranks";
  return shape.uneven ? "needs blocks of equal size" : nullptr;
}

TwoLevelExchange::TwoLevelExchange(Collective collective) {
  for (const auto& algorithm : net_algorithms()) {
    if (algorithm->collective() == collective) candidates_.push_back(algorithm);
  }
}

const Algorithm* TwoLevelExchange::choose(const Call& part, std::size_t largest, int ranks) const noexcept {
  CallShape shape;
  shape.collective = part.collective;
  shape.dtype = part.dtype;
  shape.op = part.op;
  shape.bytes = part.uneven ? 0 : largest;
  shape.ranks = shape.hosts = ranks;
  shape.uneven = part.uneven;
  shape.root = part.root;
  for (const auto& candidate : candidates_) {
    if (candidate->refusal(shape) == nullptr) return candidate.get();
  }
  return nullptr;
}

Outcome TwoLevelExchange::run(const Call& part, std::size_t largest, CallContext& context) const noexcept {
  const Algorithm* algorithm = choose(part, largest, context.size);
  return algorithm != nullptr ? algorithm->run(part, context) : Outcome{Status::kInternal, -1};
}

std::size_t TwoLevelExchange::memory(const Call& part, std::size_t largest, const CallContext& whole) const noexcept {
  // As the first of them, and the root: no other has larger chunks, or more children.
  CallContext first = whole;
  first.rank = 0;
  first.size = whole.hosts->ranks.hosts();
  Call theirs = part;
  theirs.root = 0;
  const Algorithm* algorithm = choose(part, largest, first.size);
  return AmongHosts::bytes_for(whole) + (algorithm != nullptr ? algorithm->memory(theirs, first) : 0);
}

Call part_of(const Call& call, std::byte* data, std::size_t bytes) noexcept {
  Call part = call;
  part.input = part.output = Blocks::single(data, bytes);
  part.count = bytes / size_of(call.dtype);
  if (part.op == ReduceOp::kAvg) part.op = ReduceOp::kSum;
  return part;
}

void average(const Call& call, std::byte* data, std::size_t bytes, int ranks) noexcept {
  if (call.op != ReduceOp::kAvg) return;
  void* target = data;
  const void* source = data;
  cpu::reduce(&target, 1, &source, 1, bytes / size_of(call.dtype), call.dtype, call.op, ranks);
}

Outcome await_filled(CallContext& context, int place, std::uint64_t value) {
  HostChannel& host = *context.hosts->host;
  const int left = neighbour_elsewhere(context);
  if (left < 0) return of_group(context, host.await_step(place, StepLane::kFilled, value, context.deadline));
  CallContext watching = context;
  watching.watched = left;
  const CallMemory::Part part(context.memory);
  NetCall net(watching, 0);
  WatchedStep step(context, net, place, value);
  const Outcome outcome = of_group(context, host.await_condition(place, step, context.deadline));
  return outcome.ok() ? step.seen() : outcome;
}

}  // namespace tutti
