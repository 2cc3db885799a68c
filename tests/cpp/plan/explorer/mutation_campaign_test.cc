// No mutant that goes wrong under some schedule may be accepted by the verifier, as it stands or repaired.
//
// The same sample each time: of all single changes of the base plans, each also with a second one on top and each
// permuted, which may not change the verdict. plan_campaign takes as many as one likes.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>

#include "plan/cases.h"
#include "plan/explorer/base_plans.h"
#include "plan/explorer/campaign.h"
#include "plan/explorer/chains.h"
#include "plan/explorer/explorer.h"
#include "plan/operations.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"

namespace tutti::plan::explorer {
namespace {

using enum Search::Outcome;

TEST(Mutants, BasePlansAreRight) {
  for (const BasePlan& base : base_plans(TUTTI_EXPLORED_PROGRAMS)) {
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

// Right, repairable and wrong ones; those in files too.
TEST(Permutations, ChangeNoVerdictOfAnyPlan) {
#if defined(TUTTI_ONE_TARGET)
  constexpr int kTimes = 2;  // under sanitizers
#else
  constexpr int kTimes = 20;
#endif
  std::mt19937_64 random(1);
  Tally all;
  std::size_t plans = 0;
  const auto permute_one = [&](const std::string& name, const Plan& plan) {
    ++plans;
    const Verdict verdict = verify(plan);
    for (int i = 0; i < kTimes; ++i) permute(plan, name, verdict, random, all);
  };
  for (const auto& cases : {right_cases(), repairable_cases(), wrong_cases()}) {
    for (const Case& c : cases) permute_one(c.name, loaded(c.plan).value());
  }
  for (const BasePlan& base : base_plans(TUTTI_EXPLORED_PROGRAMS)) permute_one(base.name, base.plan);
  for (const auto& entry : std::filesystem::directory_iterator(TUTTI_TEST_PLANS)) {
    if (entry.path().extension() != ".json" || entry.path().stem() == "verdicts") continue;
    std::ifstream file(entry.path());
    permute_one(entry.path().stem(), read_plan(std::string(std::istreambuf_iterator<char>(file), {})));
  }
  for (const std::string& plan : all.changed_by_permutation) ADD_FAILURE() << plan;
  EXPECT_EQ(all.permuted, plans * kTimes);
}

TEST(Mutants, NoneThatGoesWrongIsAccepted) {
#if defined(TUTTI_ONE_TARGET)
  constexpr std::size_t kEvery = 150;  // under sanitizers
#else
  constexpr std::size_t kEvery = 5;
#endif
  const Chains chains(base_plans(TUTTI_EXPLORED_PROGRAMS), 1);
  Tally all;
  for (std::size_t number = 0; number < chains.changes(); number += kEvery) chains.follow(number, {}, all);
  for (const std::string& mutant : all.accepted_wrong) ADD_FAILURE() << mutant;
  for (const std::string& mutant : all.changed_by_permutation) ADD_FAILURE() << mutant;
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
