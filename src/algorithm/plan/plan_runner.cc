#include "algorithm/plan/plan_runner.h"

#include <sched.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "algorithm/net/net_call.h"
#include "base/interruption.h"
#include "executor/program/inflow.h"
#include "plan/operations.h"

namespace tutti {
namespace {

// What one invocation works on, of all rank blocks of the larger buffer together: small enough to stay in a core's
// cache between the steps of a plan, large enough that its signals cost little. Where ranks share cores a signal costs
// a switch of threads, between hosts a message.
constexpr std::size_t kSegmentBytes = std::size_t{256} << 10;
constexpr std::size_t kCrowdedSegmentBytes = std::size_t{1} << 20;
constexpr std::size_t kHostsSegmentBytes = std::size_t{4} << 20;
constexpr std::size_t kMostPrograms = 64;
constexpr std::size_t kSegmentsInTurn = 4;  // shadows

// Turns of the core that a rank gives away before it sleeps: a sleeper that listens to sockets looks at its host's
// memory once a millisecond only.
constexpr int kYields = 100;

// Segments end where chunks end: so only the last one of a message has short chunks. All ranks cut alike.
std::size_t segment_of(const executor::Tables& tables, const GroupPlace& world) {
  const plan::Shape& shape = tables.shape();
  const auto unit = static_cast<std::size_t>(std::max(shape.block_chunks[0], shape.block_chunks[1])) * 64;
  const auto blocks = static_cast<std::size_t>(std::max(shape.blocks[0], shape.blocks[1]));
  const std::size_t bytes = !world.ranks.one_host() ? kHostsSegmentBytes
                            : world.host->crowded() ? kCrowdedSegmentBytes
                                                    : kSegmentBytes;
  return std::max(unit, bytes / blocks / unit * unit);
}

std::unique_ptr<executor::FarPorts> far_ports(const executor::Tables& tables, int rank) {
  return tables.one_host() ? nullptr : std::make_unique<executor::FarPorts>(tables, rank);
}

}  // namespace

class PlanRunner::Progress final : public HostChannel::Condition {
 public:
  explicit Progress(PlanRunner& runner) noexcept : runner_(runner) {}
  bool holds() noexcept override { return runner_.pass() != executor::Step::kBlocked; }

 private:
  PlanRunner& runner_;
};

// Between hosts a rank may sleep where it waits for messages: see await_hosts().
void PlanRunner::HostDoorbell::ring(std::int32_t rank) noexcept {
  const int index = world_.place_here(rank);
  if (world_.host == nullptr || index < 0) return;
  world_.host->ring_doorbell(index, WaitLane::kCollective);
  if (!world_.ranks.one_host()) world_.host->ring_doorbell(index, WaitLane::kMessage);
}

PlanRunner::PlanRunner(std::shared_ptr<const plan::Plan> plan, const GroupPlace& world)
    : world_(world),
      tables_(std::move(plan), world.ranks),
      geometry_{&tables_, segment_of(tables_, world)},
      // Whether the tensors of another host are mapped is not known here, and all ranks must cut alike.
      uncut_(world.ranks.one_host() && !tables_.scratch().plain && !tables_.scratch().packets &&
             !plan::has_loops(tables_.plan())),
      doorbell_(world_),
      memory_(world_, layouts(), ring_bytes()),
      far_(far_ports(tables_, world.rank)),
      interpreter_(tables_, world.rank, memory_.ranks(), &doorbell_, far_.get()) {
  program(geometry_.segment_bytes);  // that of most messages
}

// Loops are cut by segments, so what can be decoded for a segment can be for every call.
void PlanRunner::check(std::shared_ptr<const plan::Plan> plan, const GroupPlace& world) {
  const executor::Tables tables(std::move(plan), world.ranks);
  const auto bytes = static_cast<std::int64_t>(segment_of(tables, world));
  const executor::Program segment(tables, world.rank, bytes, bytes);
}

std::vector<executor::RankLayout> PlanRunner::layouts() const {
  std::vector<executor::RankLayout> list;
  const auto bytes = static_cast<std::int64_t>(geometry_.segment_bytes);
  for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) list.push_back(tables_.layout(rank, bytes, bytes));
  return list;
}

std::size_t PlanRunner::ring_bytes() const noexcept {
  return kSegmentsInTurn * geometry_.shadow_bytes(geometry_.segment_bytes);
}

// Where the shadows of the next piece lie. All ranks make the same invocations, so they agree.
std::size_t PlanRunner::take_shadow(std::size_t piece) noexcept {
  if (piece > geometry_.segment_bytes) return 0;  // a whole message that needs none
  const std::size_t bytes = geometry_.shadow_bytes(piece);
  if (next_shadow_ + bytes > ring_bytes()) next_shadow_ = 0;
  return std::exchange(next_shadow_, next_shadow_ + bytes);
}

const executor::Program& PlanRunner::program(std::size_t block_bytes) {
  const auto found = programs_.find(block_bytes);
  if (found != programs_.end()) return *found->second;
  if (programs_.size() >= kMostPrograms) programs_.clear();
  const auto bytes = static_cast<std::int64_t>(block_bytes);
  auto made = std::make_unique<executor::Program>(tables_, interpreter_.rank(), bytes, bytes);
  interpreter_.prepare(*made);
  return *programs_.emplace(block_bytes, std::move(made)).first->second;
}

// Null if there is no memory for it.
const executor::Program* PlanRunner::find_program(std::size_t block_bytes) noexcept {
  try {
    return &program(block_bytes);
  } catch (...) {
    return nullptr;
  }
}

Outcome PlanRunner::run(const Call& call, CallContext& context) noexcept {
  Outcome outcome =
      world_.ranks.one_host() ? run_invocations(call, context, nullptr) : run_between_hosts(call, context);
  if (!outcome.ok()) memory_.fail();
  return outcome;
}

Outcome PlanRunner::run_between_hosts(const Call& call, CallContext& context) noexcept {
  NetCall net(context, 0);  // what it takes, PlanAlgorithm::memory() has said
  net.greet();
  // Ranks of a host exchange places only after their calls have been compared.
  Outcome outcome = joined_ ? kOkOutcome : net.finish();
  if (outcome.ok()) {
    far_->open(*context.port, context.record, net.tag());
    outcome = run_invocations(call, context, &net);
    far_->close();
  }
  return outcome.ok() ? net.finish() : outcome;
}

Outcome PlanRunner::join(CallContext& context) noexcept {
  if (joined_) return kOkOutcome;
  const Outcome outcome = world_.of_ranks(memory_.join(context.deadline));
  joined_ = outcome.ok();
  if (outcome.status != Status::kExhausted) return outcome;
  try {
    context.detail = "rank " + std::to_string(outcome.peer) + " has no memory for plan \"" + tables_.plan().name + "\"";
  } catch (...) {
    context.detail.clear();  // then the error says less
  }
  return outcome;
}

Outcome PlanRunner::run_invocations(const Call& call, CallContext& context, NetCall* net) noexcept {
  if (Outcome outcome = join(context); !outcome.ok()) return outcome;
  PlanBuffers buffers(geometry_, memory_, call, context);
  const std::size_t bytes = buffers.block_bytes();
  const std::size_t step = uncut_ && buffers.direct() ? bytes : geometry_.segment_bytes;
  for (std::size_t begin = 0; begin < bytes; begin += step) {
    const std::size_t piece = std::min(step, bytes - begin);
    const executor::Program* ready = find_program(piece);
    if (ready == nullptr) return {Status::kExhausted, context.rank};
    buffers.load(begin, piece, take_shadow(piece));
    interpreter_.begin(*ready, call.dtype, call.op,
                       [&](const executor::BaseRef& ref) noexcept { return buffers.address(ref); });
    if (Outcome outcome = finish_invocation(context, net); !outcome.ok()) return outcome;
    buffers.store();
  }
  memory_.end_call();
  return kOkOutcome;
}

Outcome PlanRunner::finish_invocation(CallContext& context, NetCall* net) noexcept {
  while (!interpreter_.ended()) {
    if (pass() != executor::Step::kBlocked) continue;
    // With no message under way nobody of another host waits for this rank to drive the port.
    const bool messages = net != nullptr && (world_.host == nullptr || !far_->idle() || !net->finished());
    Outcome outcome = messages ? await_hosts(context, *net) : await_host(context);
    if (outcome.ok()) continue;
    if (outcome.status == Status::kTimeout || outcome.status == Status::kPeerFailed) explain(context, outcome);
    if (net != nullptr && outcome.status == Status::kPeerFailed) outcome = ask_for_mismatch(context, *net, outcome);
    return outcome;
  }
  return kOkOutcome;
}

executor::Step PlanRunner::pass() noexcept {
  const HostChannel::Publishing publishing(world_.host);
  return interpreter_.pass();
}

Outcome PlanRunner::await_host(CallContext& context) noexcept {
  Progress progress(*this);
  const int peer = world_.place_here(interpreter_.awaited());
  return world_.of_ranks(world_.host->await_condition(peer, progress, context.deadline));
}

// Until something can be done, here or by a message.
Outcome PlanRunner::await_hosts(CallContext& context, NetCall& net) noexcept {
  for (int i = 0; i < kYields; ++i) {
    context.port->progress();
    if (pass() != executor::Step::kBlocked) return kOkOutcome;
    sched_yield();
  }
  Outcome outcome;
  bool advanced = false;
  const auto advance = [&]() noexcept { return advanced = advanced || pass() != executor::Step::kBlocked; };
  const auto stop = [&]() noexcept {
    // The order matters: a peer that did what we wait for and then left or died has still done it.
    const Outcome life = check_host();
    if (advance()) return true;
    CallRecord remote;
    outcome = far_->verdict(remote);
    if (outcome.status == Status::kMismatch) context.mismatched = remote;
    if (const Outcome other = net.verdict(); weight_of(other.status) > weight_of(outcome.status)) outcome = other;
    if (outcome.ok()) outcome = life;
    if (outcome.ok() && context.deadline.expired()) outcome = {Status::kTimeout, interpreter_.awaited()};
    return !outcome.ok();
  };
  context.port->drive(std::ref(stop), std::ref(advance));
  if (outcome.ok() && !go_on_waiting()) return {Status::kAborted, world_.rank};
  return outcome;
}

// Whether a rank of this host has failed, or one that is waited for has left.
Outcome PlanRunner::check_host() noexcept {
  if (world_.host == nullptr) return kOkOutcome;
  const int awaited = world_.place_here(interpreter_.awaited());
  const Outcome outcome = world_.host->check(awaited);
  if (outcome.status == Status::kPeerLeft && awaited < 0) return kOkOutcome;  // others may still bring what is missing
  return world_.of_ranks(outcome);
}

// A rank of this host has failed. If it has found its call to differ from ours it has said so by a message that may not
// have been read: then that is what explains most.
Outcome PlanRunner::ask_for_mismatch(CallContext& context, NetCall& net, Outcome outcome) noexcept {
  if (outcome.peer < 0 || outcome.peer == context.hosts->rank) return outcome;  // found by a look at other hosts
  MessageOp probe;
  constexpr std::uint64_t kNobodySends = executor::kMostStream + 1;
  context.port->post_recv(probe, outcome.peer, NetCall::tag_of(context.record) + kNobodySends, nullptr, 0,
                          context.record);
  context.port->wait(probe, context.deadline);
  context.port->cancel(probe);
  if (probe.outcome.status == Status::kMismatch) {
    context.mismatched = probe.remote;
    return probe.outcome;
  }
  const Outcome said = net.verdict();
  return said.status == Status::kMismatch ? said : outcome;
}

void PlanRunner::explain(CallContext& context, Outcome& outcome) const noexcept {
  try {
    const std::vector<std::int32_t> late = interpreter_.late_ranks();
    if (outcome.status == Status::kTimeout && outcome.peer < 0 && late.size() == 1) outcome.peer = late.front();
    context.detail = "plan \"" + tables_.plan().name + "\": " + interpreter_.describe_blocked();
  } catch (...) {
    context.detail.clear();  // without memory the error goes without its detail
  }
}

}  // namespace tutti
