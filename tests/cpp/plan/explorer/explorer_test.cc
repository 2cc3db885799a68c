// The explorer knows right from wrong, and its reduction loses nothing.
#include "plan/explorer/explorer.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

#include "plan/cases.h"
#include "plan/explorer/base_plans.h"
#include "plan/explorer/campaign.h"
#include "plan/explorer/mutations.h"
#include "plan/verifier/verifier.h"

namespace tutti::plan::explorer {
namespace {

using enum Search::Outcome;

TEST(Explorer, FindsNothingInRightPlans) {
  for (const Case& c : right_cases()) {
    if (c.plan.ranks.size() > 3) continue;
    const Finding finding = explore(c.plan);
    EXPECT_EQ(finding.outcome, kRight) << c.name << ": " << finding.what;
  }
}

TEST(Explorer, SeesEveryClassOfFault) {
  for (const Case& c : wrong_cases()) {
    EXPECT_EQ(explore(c.plan).outcome, kWrong) << c.name;
  }
}

TEST(Explorer, SeesThatRepairsAreNeededAndHelp) {
  for (const Case& c : repairable_cases()) {
    EXPECT_EQ(explore(c.plan).outcome, kWrong) << c.name;
    const Verdict verdict = verify(c.plan);
    const Finding finding = explore(repaired(c.plan, verdict.repairs));
    EXPECT_EQ(finding.outcome, kRight) << c.name << ": " << finding.what;
  }
}

// Whatever branching over all that can happen decides, branching over stubborn sets decides alike.
TEST(Explorer, ReductionLosesNothing) {
  const std::set<std::string> small{"handshake", "semaphore",      "port",
                                    "packets_2", "packet_chain_2", "two_blocks_credit"};
  std::size_t right = 0;
  std::size_t wrong = 0;
  for (const BasePlan& base : plans_by_hand()) {
    if (!small.contains(base.name)) continue;
    const std::vector<Mutation> mutations = mutations_of(base.plan);
    for (std::size_t i = 0; i < mutations.size(); i += 3) {
      Plan changed = base.plan;
      mutations[i].apply(changed);
      const std::optional<Plan> mutant = loaded(changed);
      if (!mutant) continue;
      const Finding all = explore(*mutant, {.states = 3000, .reduce = false});
      if (all.outcome == kUndecided) continue;
      const Finding reduced = explore(*mutant);
      EXPECT_EQ(reduced.outcome, all.outcome) << base.name << ": " << mutations[i].name << ": " << all.what;
      EXPECT_LE(reduced.states, all.states);
      ++(all.outcome == kRight ? right : wrong);
    }
  }
  EXPECT_GT(right, 20U);
  EXPECT_GT(wrong, 50U);
}

}  // namespace
}  // namespace tutti::plan::explorer
