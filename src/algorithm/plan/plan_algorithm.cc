#include "algorithm/plan/plan_algorithm.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "algorithm/plan/plan_buffers.h"
#include "algorithm/plan/plan_memory.h"
#include "executor/cpu/interpreter.h"
#include "executor/cpu/program.h"
#include "executor/cpu/serves.h"
#include "executor/cpu/tables.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using plan::PlanCollective;

// What one invocation works on, of all rank blocks of the larger buffer together: small enough to stay in a core's
// cache between the steps of a plan, large enough that its signals cost little. Where ranks share cores a signal costs
// a switch of threads.
constexpr std::size_t kSegmentBytes = std::size_t{256} << 10;
constexpr std::size_t kCrowdedSegmentBytes = std::size_t{1} << 20;
constexpr std::size_t kMostPrograms = 64;
constexpr std::size_t kSegmentsInTurn = 4;  // shadows

std::optional<Collective> collective_of(PlanCollective collective) {
  switch (collective) {
    case PlanCollective::kAllReduce:
      return Collective::kAllReduce;
    case PlanCollective::kAllGather:
      return Collective::kAllGather;
    case PlanCollective::kReduceScatter:
      return Collective::kReduceScatter;
    case PlanCollective::kAllToAll:
      return Collective::kAllToAll;
    case PlanCollective::kBroadcast:
      return Collective::kBroadcast;
    case PlanCollective::kReduce:
      return Collective::kReduce;
    case PlanCollective::kGather:
      return Collective::kGather;
    case PlanCollective::kScatter:
      return Collective::kScatter;
    default:
      return std::nullopt;
  }
}

bool is_rooted(Collective c) noexcept {
  return c == Collective::kReduce || c == Collective::kBroadcast || c == Collective::kGather ||
         c == Collective::kScatter;
}

bool has_loops(const plan::Plan& plan) {
  for (const plan::Rank& rank : plan.ranks) {
    for (const plan::ThreadBlock& block : rank.blocks) {
      for (const plan::Operation& op : block.operations) {
        if (op.kind == plan::OpKind::kPipeline) return true;
      }
    }
  }
  return false;
}

// Segments end where chunks end: so only the last one of a message has short chunks.
std::size_t segment_of(const executor::Tables& tables, bool crowded) {
  const plan::Shape& shape = tables.shape();
  const auto unit = static_cast<std::size_t>(std::max(shape.block_chunks[0], shape.block_chunks[1])) * 64;
  const auto blocks = static_cast<std::size_t>(std::max(shape.blocks[0], shape.blocks[1]));
  return std::max(unit, (crowded ? kCrowdedSegmentBytes : kSegmentBytes) / blocks / unit * unit);
}

// A doorbell that wakes ranks which sleep in the host channel.
class HostDoorbell final : public executor::Doorbell {
 public:
  explicit HostDoorbell(HostChannel& host) noexcept : host_(host) {}
  void ring(std::int32_t rank) noexcept override { host_.ring_doorbell(rank, WaitLane::kCollective); }

 private:
  HostChannel& host_;
};

// What a plan keeps between calls in one communicator.
class PlanRunner {
 public:
  PlanRunner(std::shared_ptr<const plan::Plan> plan, HostChannel& host)
      : tables_(std::move(plan)),
        geometry_{&tables_, segment_of(tables_, host.crowded())},
        uncut_(!tables_.scratch().plain && !tables_.scratch().packets && !has_loops(tables_.plan())),
        doorbell_(host),
        memory_(host, layouts(), ring_bytes()),
        interpreter_(tables_, host.index(), memory_.ranks(), &doorbell_) {
    program(geometry_.segment_bytes);  // what cannot run is refused now
  }

  const plan::Plan& plan() const noexcept { return tables_.plan(); }

  Outcome run(const Call& call, CallContext& context) noexcept {
    Outcome outcome = run_call(call, context);
    if (!outcome.ok()) memory_.fail();
    return outcome;
  }

 private:
  class Progress final : public HostChannel::Condition {
   public:
    explicit Progress(executor::Interpreter& interpreter) noexcept : interpreter_(interpreter) {}
    bool holds() noexcept override { return interpreter_.pass() != executor::Step::kBlocked; }

   private:
    executor::Interpreter& interpreter_;
  };

  std::vector<executor::RankLayout> layouts() const {
    std::vector<executor::RankLayout> list;
    const auto bytes = static_cast<std::int64_t>(geometry_.segment_bytes);
    for (std::int32_t rank = 0; rank < tables_.ranks(); ++rank) list.push_back(tables_.layout(rank, bytes, bytes));
    return list;
  }

  std::size_t ring_bytes() const noexcept { return kSegmentsInTurn * geometry_.shadow_bytes(geometry_.segment_bytes); }

  // Where the shadows of the next piece lie. All ranks make the same invocations, so they agree.
  std::size_t take_shadow(std::size_t piece) noexcept {
    if (piece > geometry_.segment_bytes) return 0;  // a whole message that needs none
    const std::size_t bytes = geometry_.shadow_bytes(piece);
    if (next_shadow_ + bytes > ring_bytes()) next_shadow_ = 0;
    return std::exchange(next_shadow_, next_shadow_ + bytes);
  }

  const executor::Program& program(std::size_t block_bytes) {
    const auto found = programs_.find(block_bytes);
    if (found != programs_.end()) return *found->second;
    if (programs_.size() >= kMostPrograms) programs_.clear();
    const auto bytes = static_cast<std::int64_t>(block_bytes);
    auto made = std::make_unique<executor::Program>(tables_, interpreter_.rank(), bytes, bytes);
    interpreter_.prepare(*made);
    return *programs_.emplace(block_bytes, std::move(made)).first->second;
  }

  // Null if there is no memory for it.
  const executor::Program* find_program(std::size_t block_bytes) noexcept {
    try {
      return &program(block_bytes);
    } catch (...) {
      return nullptr;
    }
  }

  Outcome run_call(const Call& call, CallContext& context) noexcept {
    if (!joined_) {
      if (Outcome outcome = memory_.join(context.deadline); !outcome.ok()) return outcome;
      joined_ = true;
    }
    PlanBuffers buffers(geometry_, memory_, call, context);
    const std::size_t bytes = buffers.block_bytes();
    const std::size_t step = uncut_ && buffers.direct() ? bytes : geometry_.segment_bytes;
    for (std::size_t begin = 0; begin < bytes; begin += step) {
      const std::size_t piece = std::min(step, bytes - begin);
      const executor::Program* ready = find_program(piece);
      if (ready == nullptr) return {Status::kInternal, -1};
      buffers.load(begin, piece, take_shadow(piece));
      interpreter_.begin(*ready, call.dtype, call.op,
                         [&](const executor::BaseRef& ref) noexcept { return buffers.address(ref); });
      if (Outcome outcome = finish_invocation(context); !outcome.ok()) return outcome;
      buffers.store();
    }
    memory_.end_call();
    return kOkOutcome;
  }

  Outcome finish_invocation(CallContext& context) noexcept {
    Progress progress(interpreter_);
    while (!interpreter_.ended()) {
      if (interpreter_.pass() != executor::Step::kBlocked) continue;
      const std::int32_t peer = interpreter_.awaited();
      const Outcome outcome = context.host->await_condition(peer, progress, context.deadline);
      if (outcome.ok()) continue;
      if (outcome.status == Status::kTimeout) explain(context);
      return outcome;
    }
    return kOkOutcome;
  }

  void explain(CallContext& context) const noexcept {
    try {
      context.detail = "plan \"" + plan().name + "\": " + interpreter_.describe_blocked();
    } catch (...) {
      context.detail.clear();  // without memory the error goes without its detail
    }
  }

  const executor::Tables tables_;
  const PlanGeometry geometry_;
  const bool uncut_;
  HostDoorbell doorbell_;
  PlanMemory memory_;
  executor::Interpreter interpreter_;
  std::map<std::size_t, std::unique_ptr<executor::Program>> programs_;  // by bytes of a rank block
  std::size_t next_shadow_ = 0;
  bool joined_ = false;
};

class PlanAlgorithm final : public Algorithm {
 public:
  PlanAlgorithm(Collective collective, const PlanFile& file, HostChannel& host)
      : collective_(collective),
        name_("plan:" + file.plan->name),
        summary_("runs the plan of " + file.path),
        runner_(std::make_unique<PlanRunner>(file.plan, host)) {}

  std::string_view name() const noexcept override { return name_; }
  Collective collective() const noexcept override { return collective_; }
  std::string_view summary() const noexcept override { return summary_; }

  const char* refusal(const CallShape& shape) const noexcept override {
    const plan::Plan& plan = runner_->plan();
    if (shape.hosts > 1) return "needs all ranks on one host";
    if (static_cast<std::size_t>(shape.ranks) != plan.ranks.size()) return "is for another number of ranks";
    if (shape.uneven) return "needs blocks of equal size";
    if (shape.bytes < plan.min_message_bytes || shape.bytes > plan.max_message_bytes) {
      return "is for messages of other sizes";
    }
    if (is_rooted(collective_) && shape.root != plan.root) return "is for another root";
    return executor::refusal(plan, shape.dtype, shape.op);
  }

  // Const like every algorithm; what changes belongs to the communicator that runs it under its lock.
  Outcome run(const Call& call, CallContext& context) const noexcept override { return runner_->run(call, context); }

 private:
  const Collective collective_;
  const std::string name_;
  const std::string summary_;
  const std::unique_ptr<PlanRunner> runner_;
};

}  // namespace

std::vector<std::shared_ptr<const Algorithm>> plan_algorithms(const PlanFiles& plans, HostChannel& host) {
  std::vector<std::shared_ptr<const Algorithm>> list;
  if (!host.arenas_mapped()) return list;
  for (const PlanFile& file : plans.files) {
    const std::optional<Collective> collective = collective_of(file.plan->collective);
    if (!collective || file.plan->ranks.size() != static_cast<std::size_t>(host.ranks())) continue;
    try {
      list.push_back(std::make_shared<PlanAlgorithm>(*collective, file, host));
    } catch (const Error& error) {
      throw_error(error.kind(), file.path + ": " + error.what());
    }
  }
  return list;
}

}  // namespace tutti
