#include "algorithm/plan/plan_algorithm.h"

#include <optional>
#include <utility>

#include "algorithm/net/net_call.h"
#include "algorithm/plan/plan_admission.h"
#include "algorithm/plan/plan_runner.h"
#include "base/collective_traits.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti {
namespace {

class PlanAlgorithm final : public Algorithm {
 public:
  PlanAlgorithm(Collective collective, const PlanFile& file, std::shared_ptr<const GroupPlace> world)
      : collective_(collective),
        name_("plan:" + file.plan->name),
        summary_("runs the plan of " + file.path),
        plan_(file.plan),
        world_(std::move(world)) {
    try {
      PlanAdmissions::of_process().check(plan_, *world_);
    } catch (const Error& error) {
      // Between hosts a plan may not work that is right: then others are taken. All ranks find the same.
      if (world_->ranks.one_host() || error.kind() != ErrorKind::kUnsupported) throw;
      unfit_ = error.what();
    }
  }

  std::string_view name() const noexcept override { return name_; }
  Collective collective() const noexcept override { return collective_; }
  std::string_view summary() const noexcept override { return summary_; }

  const char* refusal(const CallShape& shape) const noexcept override {
    return unfit_.empty() ? plan_refusal(*plan_, collective_, shape) : unfit_.c_str();
  }

  std::size_t memory(const Call&, const CallContext& context) const noexcept override {
    return context.hosts != nullptr ? NetCall::bytes_for(0) : 0;
  }

  // Const like every algorithm: what may be called from any thread (all but this) reads what never changes.
  Outcome run(const Call& call, CallContext& context) const noexcept override {
    PlanRunner* const ready = runner();
    return ready != nullptr ? ready->run(call, context) : Outcome{Status::kExhausted, context.rank};
  }

 private:
  // Made at the first call, because it takes longer than a group and few of a group's plans are called. Null if it
  // cannot be made. That a plan suits has been found when it was admitted, so what is caught is want of memory, by
  // whatever name (bad_alloc, length_error, Error(kExhausted)), and to the call, which may not throw, all are one.
  PlanRunner* runner() const noexcept {
    try {
      if (runner_ == nullptr) runner_ = std::make_unique<PlanRunner>(plan_, *world_);
    } catch (...) {
      return nullptr;
    }
    return runner_.get();
  }

  const Collective collective_;
  const std::string name_;
  const std::string summary_;
  const std::shared_ptr<const plan::Plan> plan_;
  const std::shared_ptr<const GroupPlace> world_;
  std::string unfit_;  // why it cannot run on these hosts
  // Mutable because only run() touches it, under the communicator's lock (see the header); so it needs none of its own.
  mutable std::unique_ptr<PlanRunner> runner_;
};

}  // namespace

const char* plan_refusal(const plan::Plan& plan, Collective collective, const CallShape& shape) noexcept {
  if (static_cast<std::size_t>(shape.ranks) != plan.ranks.size()) return "is for another number of ranks";
  if (shape.uneven) return "needs blocks of equal size";
  if (shape.bytes < plan.min_message_bytes || shape.bytes > plan.max_message_bytes) {
    return "is for messages of other sizes";
  }
  if (has_root(collective) && shape.root != plan.root) return "is for another root";
  return executor::refusal(plan, shape.dtype, shape.op);
}

std::vector<std::shared_ptr<const Algorithm>> plan_algorithms(const std::vector<PlanFile>& plans,
                                                              const GroupPlace& world) {
  std::vector<std::shared_ptr<const Algorithm>> list;
  const auto shared_world = std::make_shared<const GroupPlace>(world);
  for (const PlanFile& file : plans) {
    const std::optional<Collective> collective = plan::rules_of(file.plan->collective).call;
    if (!collective || static_cast<int>(file.plan->ranks.size()) != world.ranks.ranks()) continue;
    try {
      list.push_back(std::make_shared<PlanAlgorithm>(*collective, file, shared_world));
    } catch (const Error& error) {
      throw_error(error.kind(), file.path + ": " + error.what());
    }
  }
  return list;
}

}  // namespace tutti
