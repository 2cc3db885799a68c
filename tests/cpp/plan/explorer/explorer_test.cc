// The explorer knows right from wrong, and its reduction loses nothing.
#include "plan/explorer/explorer.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>

#include "plan/cases.h"
#include "plan/explorer/base_plans.h"
#include "plan/explorer/campaign.h"
#include "plan/explorer/loop_plans.h"
#include "plan/explorer/mutations.h"
#include "plan/operations.h"
#include "plan/plan_builder.h"
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

// One that writes an input runs on a copy if it says so, else on what is the caller's.
TEST(Explorer, KnowsWhoseTheInputIs) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 2, 2, 0);
  builder.at(0).copy(local(kI, 0, 2), local(kO, 0, 2)).nop().copy(local(kO, 0), local(kI, 1));
  EXPECT_EQ(explore(builder.plan).outcome, kWrong);
  builder.plan.writes_input = true;
  const Finding declared = explore(builder.plan);
  EXPECT_EQ(declared.outcome, kRight) << declared.what;
}

// A thread block releases once an iteration over both chunks, the other acquires once an iteration over each. Only a
// chunk that is no whole number of units shows that these are not equally many.
TEST(Explorer, CutsChunksWithinAnIteration) {
  PlanBuilder builder(PlanCollective::kCustom, 1, 2, 2, 0);
  builder.plan.ranks[0].semaphores = {0};
  const auto loop = [](std::int32_t chunks, OpKind kind) {
    Operation op;
    op.kind = kind;
    op.semaphore_ids = {0};
    return plan::loop_of(chunks, {op}, 1024);
  };
  builder.at(0, 1);
  builder.at(0, 0).add(loop(2, OpKind::kSemRelease));
  builder.at(0, 1).add(loop(1, OpKind::kSemAcquire));
  builder.at(0, 1).add(loop(1, OpKind::kSemAcquire));
  const Finding finding = explore(builder.plan);
  EXPECT_EQ(finding.outcome, kWrong);
  EXPECT_NE(finding.what.find("bytes"), std::string::npos) << finding.what;
  EXPECT_EQ(verify(builder.plan).outcome, tutti::plan::Outcome::kRejected);
}

Plan loop_plan(const std::string& name) {
  for (const BasePlan& base : plans_with_loops()) {
    if (base.name == name) return base.plan;
  }
  ADD_FAILURE() << name;
  return {};
}

// Rank 0 signals three times an iteration, rank 1 waits once in one loop and twice in the next: which of the three it
// meets where depends on how many iterations the first loop has, and in the third the one that publishes is lost.
TEST(Explorer, KnowsLoopsThatCountDifferently) {
  Plan plan = loop_plan("loop_all_reduce");
  std::vector<Operation>& signaller = plan.ranks[0].blocks[0].operations[0].body;
  signaller.insert(signaller.begin(), signaller[0]);
  std::vector<Operation>& waiter = plan.ranks[1].blocks[0].operations;
  Operation second = waiter[0];
  waiter[0].body.resize(6);
  second.body.erase(second.body.begin(), second.body.begin() + 6);
  second.body.insert(second.body.begin(), second.body[0]);
  waiter.push_back(second);
  EXPECT_EQ(explore(plan).outcome, kWrong);
  EXPECT_EQ(verify_strictly(plan).fault.kind, FaultKind::kRace);
}

// Where scratch is so small that no loop of a message that fits runs twice, nothing that two iterations do matters,
// whatever other loops there are.
TEST(Explorer, MessagesThatFitRunALoopOnce) {
  Plan plan = loop_plan("loop_credits_1");
  plan.ranks[0].chunks[static_cast<std::size_t>(BufferKind::kScratch)] = 2;
  std::vector<Operation>& second = plan.ranks[0].blocks[1].operations;
  const Operation acquire = second[0].body[0];
  second[0].body.erase(second[0].body.begin());
  second.insert(second.begin(), acquire);  // once, for what the first loop releases in every iteration
  EXPECT_EQ(verify(plan).outcome, tutti::plan::Outcome::kProvenAfterRepair);
  Operation idle = plan.ranks[0].blocks[0].operations[0];
  idle.iteration = {2 * idle.iteration.unit_bytes, 2};
  idle.body.assign(1, Operation{});
  plan.ranks[0].blocks.emplace_back().operations = {idle};
  EXPECT_EQ(verify(plan).outcome, tutti::plan::Outcome::kProvenAfterRepair);
}

// Pairs of one operation may differ in length: each goes as far as it is long, and no further.
TEST(Explorer, FollowsPairsOfDifferentLengths) {
  for (const BasePlan& base : plans_by_hand()) {
    if (base.name.find("pairs") == std::string::npos || base.name.starts_with("all_pairs")) continue;
    EXPECT_EQ(verify_strictly(base.plan).outcome, tutti::plan::Outcome::kProven) << base.name;
    EXPECT_EQ(explore(base.plan).outcome, kRight) << base.name;
    Plan shorter = base.plan;
    auto& operations = shorter.ranks[0].blocks[0].operations;
    for (Operation& op : operations) {
      Operation& put = op.kind == OpKind::kPipeline ? op.body[0] : op;
      if (put.kind != OpKind::kPut) continue;
      put.sources[1].size = put.destinations[1].size = 1;
    }
    EXPECT_EQ(verify(shorter).fault.kind, FaultKind::kWrongResult) << base.name;
    EXPECT_EQ(explore(shorter).outcome, kWrong) << base.name;
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
