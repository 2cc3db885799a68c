// No mutant that goes wrong under some schedule may be accepted by the verifier, as it stands or repaired.
//
// A sample of the single changes of the base plans, each also with a second one on top, drawn from a seed that is
// printed on failure; each also permuted, which may not change the verdict. TUTTI_MUTANTS=all takes every single
// change, TUTTI_MUTANTS=<n> n times the usual sample; TUTTI_MUTANTS_STEPS=<n> takes n further changes on top of each;
// TUTTI_MUTANTS_SEED=<seed> draws others; TUTTI_MUTANTS_OF=<text> takes base plans whose name begins so.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "plan/explorer/base_plans.h"
#include "plan/explorer/campaign.h"
#include "plan/explorer/explorer.h"
#include "plan/explorer/mutations.h"
#include "plan/operations.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"

namespace tutti::plan::explorer {
namespace {

using enum Search::Outcome;

std::vector<BasePlan> base_plans() {
  std::vector<BasePlan> plans = plans_by_hand();
  for (BasePlan& program : built_in_programs()) plans.push_back(std::move(program));
  const char* of = std::getenv("TUTTI_MUTANTS_OF");
  if (of != nullptr) std::erase_if(plans, [of](const BasePlan& base) { return !base.name.starts_with(of); });
  for (BasePlan& base : plans) base.plan = read_plan(write_plan(base.plan, -1));
  return plans;
}

TEST(Mutants, BasePlansAreRight) {
  for (const BasePlan& base : base_plans()) {
    const Verdict verdict = verify_strictly(base.plan);
    EXPECT_EQ(verdict.outcome, tutti::plan::Outcome::kProven) << base.name << ": " << verdict.fault.message;
    const Finding finding = explore(base.plan);
    EXPECT_EQ(finding.outcome, kRight) << base.name << ": " << finding.what;
  }
}

TEST(Mutants, BasePlansUseEveryOperation) {
  std::set<std::string_view> used;
  for (const BasePlan& base : plans_by_hand()) {
    for (const Rank& rank : base.plan.ranks) {
      for (const ThreadBlock& block : rank.blocks) {
        for (const Operation& op : block.operations) used.insert(to_string(op.kind));
      }
    }
  }
  EXPECT_EQ(used.size(), static_cast<std::size_t>(kOpKindCount));
}

// How many of all single changes are tried, and as many double ones.
double share() {
#if defined(TUTTI_ONE_TARGET)
  constexpr double kUsual = 0.02;  // under sanitizers
#else
  constexpr double kUsual = 0.2;
#endif
  const char* wanted = std::getenv("TUTTI_MUTANTS");
  if (wanted == nullptr) return kUsual;
  return std::string(wanted) == "all" ? 1 : std::min(1.0, kUsual * std::strtod(wanted, nullptr));
}

// Further changes on top of each single one.
std::size_t steps() {
  const char* wanted = std::getenv("TUTTI_MUTANTS_STEPS");
  return wanted == nullptr ? 1 : std::strtoull(wanted, nullptr, 10);
}

std::uint64_t seed() {
  const char* wanted = std::getenv("TUTTI_MUTANTS_SEED");
  return wanted == nullptr ? 20240611 : std::strtoull(wanted, nullptr, 10);
}

// Empty if nothing has changed or the loader refuses it.
std::optional<Plan> changed(const Plan& plan, const Mutation& mutation, Tally& tally) {
  Plan mutant = plan;
  mutation.apply(mutant);
  if (mutant == plan) return std::nullopt;
  std::optional<Plan> result = loaded(mutant);
  tally.refused += result ? 0 : 1;
  return result;
}

// Changes one on top of the other: from what is accepted mostly, so that several can add up to something that looks
// right and is not.
void walk(const BasePlan& base, Plan from, std::string name, std::size_t steps, std::mt19937_64& random, Tally& tally) {
  std::optional<Plan> at = std::move(from);
  for (std::size_t step = 0; step < steps; ++step) {
    const std::vector<Mutation> more = mutations_of(*at);
    const Mutation& next = more[std::uniform_int_distribution<std::size_t>(0, more.size() - 1)(random)];
    std::optional<Plan> mutant = changed(*at, next, tally);
    if (!mutant || *mutant == base.plan) continue;
    const std::string longer = name + "; " + next.name;
    const Verdict verdict = judge(*mutant, longer, {}, tally);
    permute(*mutant, longer, verdict, random, tally);
    if (verdict.outcome == tutti::plan::Outcome::kRejected && random() % 8 != 0) continue;
    at = std::move(mutant);
    name = longer;
  }
}

Tally try_mutants_of(const BasePlan& base, double share, std::mt19937_64& random) {
  Tally tally;
  const std::vector<Mutation> mutations = mutations_of(base.plan);
  std::bernoulli_distribution taken(share);
  for (const Mutation& mutation : mutations) {
    if (!taken(random)) continue;
    const std::string name = base.name + ": " + mutation.name;
    std::optional<Plan> mutant = changed(base.plan, mutation, tally);
    if (!mutant) continue;
    const Verdict verdict = judge(*mutant, name, {}, tally);
    permute(*mutant, name, verdict, random, tally);
    walk(base, std::move(*mutant), name, steps(), random, tally);
  }
  return tally;
}

TEST(Mutants, NoneThatGoesWrongIsAccepted) {
  std::mt19937_64 random(seed());
  Tally all;
  for (const BasePlan& base : base_plans()) {
    const Tally tally = try_mutants_of(base, share(), random);
    for (const std::string& mutant : tally.accepted_wrong) ADD_FAILURE() << "seed " << seed() << ": " << mutant;
    for (const std::string& mutant : tally.changed_by_permutation) ADD_FAILURE() << "seed " << seed() << ": " << mutant;
    all.add(tally);
  }
  for (const std::string& alarm : all.false_alarms) std::printf("false alarm: %s\n", alarm.c_str());
  std::printf("%zu mutants: %zu proven, %zu after repair, %zu wrong, %zu undecided; %zu rejected though right\n",
              all.mutants, all.proven, all.repaired, all.wrong, all.undecided, all.rejected_right);
  std::printf("%zu permuted\n", all.permuted);
  EXPECT_GT(all.wrong, all.mutants / 3) << "most changes matter";
  EXPECT_GT(all.proven, all.mutants / 20) << "some do not";
  EXPECT_LT(all.undecided * 20, all.mutants);
  EXPECT_LT(all.rejected_right * 50, all.mutants);
}

}  // namespace
}  // namespace tutti::plan::explorer
