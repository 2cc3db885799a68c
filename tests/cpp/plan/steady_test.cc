// What follows from a few rounds is what all rounds take.
#include "plan/simulator/steady.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "plan/generators/generators.h"
#include "plan/simulator/repetition.h"
#include "plan/topologies.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

Template ring_of(std::int32_t ranks) { return std::get<Template>(generate("ring", {ranks, 1, 0})); }

std::map<std::int32_t, double> bytes_of(const Simulation& run) {
  std::map<std::int32_t, double> bytes;
  for (const LinkUse& use : run.links) bytes[use.link] = std::round(use.bytes);
  return bytes;
}

// `few`: the steady state is to show, rather than all rounds to be simulated.
void expect_as_whole(std::int32_t ranks, const Topology& topology, bool few) {
  const std::int64_t bytes = 256 * 16 * ranks;
  const Simulation whole = simulate(ring_of(ranks), topology, bytes, std::nullopt);
  const Simulation run = simulate(ring_of(ranks), topology, bytes, std::nullopt, 0);
  EXPECT_TRUE(whole.basis.empty());
  EXPECT_TRUE(run.complete) << run.basis;
  EXPECT_EQ(run.steps.size() < whole.steps.size(), few) << run.basis;
  EXPECT_NEAR(run.time_us, whole.time_us, 1e-6) << run.basis;
  EXPECT_EQ(bytes_of(run), bytes_of(whole)) << run.basis;
  EXPECT_DOUBLE_EQ(run.bounds.bandwidth_us, whole.bounds.bandwidth_us);
  EXPECT_NEAR(run.algorithm_gbs, whole.algorithm_gbs, 1e-6);
}

TEST(Steady, RoundsOfARingFollowFromAFew) {
  for (const std::int32_t ranks : {24, 40, 64}) {
    expect_as_whole(ranks, ring(ranks), true);
    expect_as_whole(ranks, star(ranks), true);
  }
}

// Whose read is among the rounds that are left out cannot be told from what nobody reads.
TEST(Steady, TransfersThatNobodyReadsDoNotHideIt) {
  Topology topology = star(64);
  topology.unread_efficiency = Efficiency{{{1, 0.5}}};
  const Simulation run = simulate(ring_of(64), topology, 256 * 16 * 64, std::nullopt, 0);
  EXPECT_TRUE(run.complete) << run.basis;
  EXPECT_DOUBLE_EQ(run.time_us, simulate(ring_of(64), star(64), 256 * 16 * 64, std::nullopt, 0).time_us) << run.basis;
}

// Messages go from rank to rank, so a rank's rounds are as long as the hops behind it: alike only after a whole leaf.
TEST(Steady, RoundsAreComparedOverALeaf) {
  for (const std::int32_t leaf : {2, 4, 5, 8}) {
    if (test::kSanitized && leaf > 2) break;
    expect_as_whole(80, leaves(80, leaf), true);
  }
}

// The wave of one slow link has not come round in the few rounds, so they are not taken for all.
TEST(Steady, OneSlowLinkIsNotMissed) {
  Topology slow = ring(64);
  slow.links[70].bandwidth /= 50;
  expect_as_whole(64, slow, false);
}

TEST(Steady, StepsNameTheOperationsOfTheTemplate) {
  const Template folded = ring_of(64);
  const Simulation run = simulate(folded, star(64), 1 << 20, std::nullopt, 0);
  const auto& operations = folded.plan.ranks[0].blocks[0].operations;
  ASSERT_FALSE(run.basis.empty());
  std::int32_t last = 0;
  for (const TimelineStep& step : run.steps) {
    EXPECT_EQ(operations[step.op].kind, step.kind);
    last = std::max(last, step.op);
  }
  EXPECT_GE(last, static_cast<std::int32_t>(operations.size()) - 3);
}

TEST(Steady, ARingOfThousandsTakesAMoment) {
  if (test::kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  const Simulation run = simulate(ring_of(2048), ring(2048), 1 << 20);
  EXPECT_TRUE(run.complete);
  EXPECT_NE(run.basis.find("of 2046 rounds of 2048 ranks; from then on every round delays all ranks"),
            std::string::npos)
      << run.basis;
  EXPECT_GE(run.time_us, run.bounds.bandwidth_us);
  // A hop's latency and transfer in each of 2(n − 1) steps, after the one in which all say that they are there.
  const double chunk_us = 512.0 / (kGbs * 1e3);
  EXPECT_GE(run.time_us, 2 * 2047 * (kLatencyUs + chunk_us));
}

TEST(Steady, OverBudgetItSaysWhatItKnows) {
  const Simulation run = simulate(ring_of(512), ring(512), 1 << 20, 0.0, 0);
  EXPECT_FALSE(run.complete);
  EXPECT_NE(run.basis.find("went over budget; the time is what they took over their part"), std::string::npos)
      << run.basis;
  EXPECT_GT(run.time_us, 0);
  EXPECT_LT(run.done, 0.1);
}

TEST(Steady, WithoutRepetitionAllIsSimulated) {
  const auto folded = std::get<Template>(generate("halving-doubling", {64, 1, 0}));
  EXPECT_TRUE(repetitions_of(folded.plan.ranks[0].blocks[0].operations).empty());
  const Simulation run = simulate(folded, star(64), 1 << 20, std::nullopt, 0);
  EXPECT_TRUE(run.basis.empty());
  EXPECT_DOUBLE_EQ(run.time_us, simulate(written_out(folded), star(64), 1 << 20).time_us);
  EXPECT_THROW(simulate(folded, star(63), 1 << 20), Error);
}

}  // namespace
}  // namespace tutti::plan
