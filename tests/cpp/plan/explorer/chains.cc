#include "plan/explorer/chains.h"

#include <optional>
#include <random>
#include <utility>

namespace tutti::plan::explorer {
namespace {

// Empty if nothing has changed or the loader refuses it.
std::optional<Plan> changed(const Plan& plan, const Mutation& mutation, Tally& tally) {
  Plan mutant = plan;
  mutation.apply(mutant);
  if (mutant == plan) return std::nullopt;
  std::optional<Plan> result = loaded(mutant);
  tally.refused += result ? 0 : 1;
  return result;
}

}  // namespace

Chains::Chains(const std::vector<BasePlan>& bases, std::size_t steps) : steps_(steps) {
  for (const BasePlan& base : bases) {
    bases_.push_back({base.name, loaded(base.plan).value()});
    for (Mutation& mutation : mutations_of(bases_.back().plan)) {
      firsts_.push_back({bases_.size() - 1, std::move(mutation)});
    }
  }
}

// From what is accepted mostly, so that several changes can add up to something that looks right and is not.
void Chains::follow(std::uint64_t number, Limits limits, Tally& tally) const {
  std::mt19937_64 random(number);
  const First& first = firsts_[number % firsts_.size()];
  const BasePlan& base = bases_[first.base];
  std::optional<Plan> at = changed(base.plan, first.mutation, tally);
  if (!at) return;
  std::string name = "chain " + std::to_string(number) + ": " + base.name + ": " + first.mutation.name;
  const auto examine = [&](const Plan& mutant, const std::string& called) {
    const Verdict verdict = judge(mutant, called, limits, tally);
    permute(mutant, called, verdict, random, tally);
    return verdict.outcome;
  };
  examine(*at, name);
  for (std::size_t step = 0; step < steps_; ++step) {
    const std::vector<Mutation> more = mutations_of(*at);
    const Mutation& next = more[std::uniform_int_distribution<std::size_t>(0, more.size() - 1)(random)];
    std::optional<Plan> mutant = changed(*at, next, tally);
    if (!mutant || *mutant == base.plan) continue;
    const std::string longer = name + "; " + next.name;
    if (examine(*mutant, longer) == Outcome::kRejected && random() % 8 != 0) continue;
    at = std::move(mutant);
    name = longer;
  }
}

}  // namespace tutti::plan::explorer
