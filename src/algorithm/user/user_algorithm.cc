#include "tutti/user_algorithm.h"

#include <algorithm>
#include <utility>

#include "algorithm/collection.h"
#include "algorithm/plan/plan_algorithm.h"
#include "algorithm/plan/plan_cache.h"
#include "algorithm/user/algorithm_source.h"
#include "algorithm/user/identity.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// What a plan does, without where its operations were written: that differs between machines.
std::uint64_t content_of(plan::Plan plan) {
  plan.source.clear();
  for (plan::Rank& rank : plan.ranks) {
    for (plan::ThreadBlock& block : rank.blocks) {
      for (plan::Operation& op : block.operations) {
        op.origin.clear();
        for (plan::Operation& inner : op.body) inner.origin.clear();
      }
    }
  }
  return Identity().add("plan").add(plan::write_plan(plan, -1)).value();
}

int ranks_of(const plan::Plan& plan, const AlgorithmLimits& limits) {
  const auto ranks = static_cast<int>(plan.ranks.size());
  if (limits.ranks != 0 && limits.ranks != ranks) {
    throw_error(ErrorKind::kInvalidArgument, "plan \"" + plan.name + "\" is for " + std::to_string(ranks) +
                                                 " ranks, not " + std::to_string(limits.ranks));
  }
  return ranks;
}

class UserPlan final : public AlgorithmSource {
 public:
  UserPlan(PlanFile file, std::uint64_t content, const AlgorithmLimits& limits)
      : AlgorithmSource(limits), file_(std::move(file)), content_(content) {}

  Kind kind() const noexcept override { return Kind::kPlan; }
  const std::string& name() const noexcept override { return file_.plan->name; }
  const std::string& collective_name() const noexcept override { return file_.plan->collective_name; }
  std::optional<Collective> collective() const noexcept override { return plan::rules_of(file_.plan->collective).call; }
  bool in_place() const noexcept override { return file_.plan->in_place; }
  std::optional<ReduceOp> default_op() const noexcept override {
    // A sum where the plan has no opinion.
    return executor::op_of(file_.plan->reduce.value_or(plan::ReduceKind::kSum), ReduceOp::kSum);
  }
  int root() const noexcept override { return file_.plan->root; }

  UserAlgorithmPtr with_limits(const AlgorithmLimits& limits) const override {
    AlgorithmLimits cut = limits;
    cut.ranks = ranks_of(*file_.plan, limits);
    return std::make_shared<UserPlan>(file_, content_, cut);
  }

  std::shared_ptr<const Algorithm> make(const GroupPlace& world) const override {
    const std::string head = "plan \"" + name() + "\" ";
    if (!collective()) {
      throw_error(ErrorKind::kUnsupported, head + "is for the collective \"" + collective_name() +
                                               "\", which has no definition to run it by: see `tutti plan run`");
    }
    if (static_cast<int>(file_.plan->ranks.size()) != world.ranks.ranks()) {
      throw_error(ErrorKind::kInvalidArgument, head + "is for " + std::to_string(file_.plan->ranks.size()) +
                                                   " ranks, the group has " + std::to_string(world.ranks.ranks()));
    }
    return plan_algorithms({file_}, world).front();
  }

  const PlanFile* plan_file() const noexcept override { return &file_; }

 protected:
  std::uint64_t content() const noexcept override { return content_; }

 private:
  const PlanFile file_;
  const std::uint64_t content_;
};

UserAlgorithmPtr user_plan(const PlanFile& file, const AlgorithmLimits& limits) {
  const plan::Plan& plan = *file.plan;
  AlgorithmLimits cut = limits;
  cut.min_bytes = std::max(limits.min_bytes, plan.min_message_bytes);
  cut.max_bytes = std::min(limits.max_bytes, plan.max_message_bytes);
  cut.ranks = ranks_of(plan, limits);
  return std::make_shared<UserPlan>(file, content_of(plan), cut);
}

class LibraryAlgorithm final : public AlgorithmSource {
 public:
  explicit LibraryAlgorithm(std::shared_ptr<const Algorithm> algorithm, const AlgorithmLimits& limits = {})
      : AlgorithmSource(limits),
        algorithm_(std::move(algorithm)),
        name_(algorithm_->name()),
        collective_name_(to_string(algorithm_->collective())) {}

  Kind kind() const noexcept override { return Kind::kLibrary; }
  const std::string& name() const noexcept override { return name_; }
  const std::string& collective_name() const noexcept override { return collective_name_; }
  std::optional<Collective> collective() const noexcept override { return algorithm_->collective(); }
  UserAlgorithmPtr with_limits(const AlgorithmLimits& limits) const override {
    return std::make_shared<LibraryAlgorithm>(algorithm_, limits);
  }
  std::shared_ptr<const Algorithm> make(const GroupPlace& /*world*/) const override { return algorithm_; }

 protected:
  std::uint64_t content() const noexcept override {
    return Identity().add("library").add(collective_name_).add(name_).value();
  }

 private:
  const std::shared_ptr<const Algorithm> algorithm_;
  const std::string name_;
  const std::string collective_name_;
};

}  // namespace

std::uint64_t UserAlgorithm::identity() const noexcept {
  return Identity()
      .add(content())
      .add(limits_.min_bytes)
      .add(limits_.max_bytes)
      .add(static_cast<std::uint64_t>(limits_.ranks))
      .add(static_cast<std::uint64_t>(limits_.ranks_per_host))
      .value();
}

UserAlgorithmPtr plan_algorithm(const std::string& text, const std::string& place, const AlgorithmLimits& limits,
                                const std::string& cache_folder) {
  return user_plan({place, PlanCache::of_process().prove(text, cache_folder).plan}, limits);
}

UserAlgorithmPtr plan_algorithm(const PlanFile& file) { return user_plan(file, {}); }

UserAlgorithmPtr library_algorithm(Collective collective, const std::string& name) {
  const auto all = AlgorithmCollection::defaults();
  std::string known;
  for (const auto& algorithm : all->of(collective)) {
    if (algorithm->name() == name) return std::make_shared<LibraryAlgorithm>(algorithm);
    known += (known.empty() ? "" : ", ") + std::string(algorithm->name());
  }
  throw_error(ErrorKind::kInvalidArgument,
              "the library has no '" + name + "' for " + std::string(to_string(collective)) + "; it has " + known);
}

std::vector<std::string> library_algorithm_names(Collective collective) {
  const auto all = AlgorithmCollection::defaults();
  std::vector<std::string> names;
  for (const auto& algorithm : all->of(collective)) names.emplace_back(algorithm->name());
  return names;
}

}  // namespace tutti
