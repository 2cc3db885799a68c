// The simulator against cases whose time can be worked out by hand, and against what must hold of every plan.
#include "plan/simulator/simulator.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/cases.h"
#include "plan/limits.h"
#include "plan/plan_builder.h"
#include "plan/topologies.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr double kTolerance = 1e-5;  // a few roundings to whole picoseconds

double us_of(std::int64_t bytes, double gbs = kGbs) { return static_cast<double>(bytes) / (gbs * 1e3); }

PlanBuilder test_plan(std::int32_t ranks, std::int32_t chunks) {
  return {PlanCollective::kTest, ranks, chunks, chunks, chunks};
}

Plan ring_all_gather(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const std::int32_t next = (r + 1) % ranks;
    const std::int32_t before = (r + ranks - 1) % ranks;
    const auto block = builder.at(r);
    for (std::int32_t step = 0; step + 1 < ranks; ++step) {
      const std::int32_t chunk = (r + ranks - step) % ranks;
      block.put(next, step == 0 ? local(kI, 0) : local(kO, chunk), kO, chunk).nop().signal(next).wait(before).nop();
    }
  }
  return builder.plan;
}

TEST(Simulator, OnePutTakesLatencyAndTransfer) {
  for (const bool by_port : {false, true}) {
    PlanBuilder builder = test_plan(2, 1);
    const auto block = builder.at(0);
    if (by_port) {
      block.put_port(OpKind::kPut, 1, local(kI, 0), kO, 0);
    } else {
      block.put(1, local(kI, 0), kO, 0);
    }
    const Simulation run = simulate(builder.plan, ring(2), 1 << 20);
    EXPECT_NEAR(run.time_us, kLatencyUs + us_of(1 << 20), kTolerance);
    ASSERT_EQ(run.links.size(), 1u);
    EXPECT_EQ(run.links[0].bytes, 1 << 20);
    EXPECT_NEAR(run.links[0].share, us_of(1 << 20) / run.time_us, 1e-6);
  }
}

TEST(Simulator, AGetTakesTheRequestToo) {
  PlanBuilder builder = test_plan(2, 1);
  const auto block = builder.at(0);
  block.move_memory(OpKind::kGet, {block.remote(ChannelKind::kMemory, 1, kI, 0)}, {local(kO, 0)});
  EXPECT_NEAR(simulate(builder.plan, ring(2), 1 << 20).time_us, 2 * kLatencyUs + us_of(1 << 20), kTolerance);
}

TEST(Simulator, ConcurrentPutsShareALink) {
  PlanBuilder builder = test_plan(2, 2);
  for (std::int32_t b = 0; b < 2; ++b) builder.at(0, b).put(1, local(kI, b), kO, b);
  const std::int64_t chunk = 1 << 20;
  const Simulation both = simulate(builder.plan, ring(2), 2 * chunk);
  EXPECT_NEAR(both.time_us, kLatencyUs + us_of(2 * chunk), kTolerance);
  for (const TimelineStep& step : both.steps) {
    EXPECT_NEAR(static_cast<double>(step.end) / kPicosecondsPerUs, us_of(2 * chunk), kTolerance);
  }
}

// When the short one is over, the long one has the link alone.
TEST(Simulator, AShareGrowsWhenATransferEnds) {
  PlanBuilder builder = test_plan(2, 4);
  builder.at(0, 0).put(1, local(kI, 0, 1), kO, 0);
  builder.at(0, 1).put(1, local(kI, 1, 3), kO, 1);
  const std::int64_t chunk = 1 << 20;
  const Simulation run = simulate(builder.plan, ring(2), 4 * chunk);
  for (const TimelineStep& step : run.steps) {
    EXPECT_NEAR(static_cast<double>(step.end) / kPicosecondsPerUs, us_of((step.block == 0 ? 2 : 4) * chunk),
                kTolerance);
  }
}

TEST(Simulator, APortChannelIsAQueue) {
  PlanBuilder builder = test_plan(2, 2);
  const auto block = builder.at(0);
  for (std::int32_t k = 0; k < 2; ++k) block.put_port(OpKind::kPutWithSignal, 1, local(kI, k), kO, k);
  block.flush(1);
  builder.at(1).port_wait(0).port_wait(0);
  const std::int64_t chunk = 1 << 20;
  const Simulation run = simulate(builder.plan, ring(2), 2 * chunk);
  EXPECT_NEAR(run.time_us, kLatencyUs + us_of(2 * chunk), kTolerance);
  std::vector<double> waits;
  for (const TimelineStep& step : run.steps) {
    const double begin = static_cast<double>(step.begin) / kPicosecondsPerUs;
    if (step.kind == OpKind::kWait) waits.push_back(begin);
    if (step.kind == OpKind::kFlush) {
      EXPECT_NEAR(begin, us_of(2 * chunk), kTolerance);
    }
  }
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_NEAR(waits[0], kLatencyUs + us_of(chunk), kTolerance);
}

TEST(Simulator, AChainOfSignalsTakesALatencyEach) {
  constexpr std::int32_t kRanks = 6;
  PlanBuilder builder = test_plan(kRanks, 1);
  for (std::int32_t r = 0; r < kRanks; ++r) {
    if (r > 0) builder.at(r).wait(r - 1);
    if (r + 1 < kRanks) builder.at(r).signal(r + 1);
    if (r + 1 < kRanks) builder.at(r + 1).channel(ChannelKind::kMemory, r);
  }
  const Simulation run = simulate(builder.plan, ring(kRanks), 16);
  EXPECT_NEAR(run.time_us, (kRanks - 1) * kLatencyUs, kTolerance);
  ASSERT_EQ(run.critical_path.size(), 2u * (kRanks - 1));
  for (std::size_t i = 0; i < run.critical_path.size(); ++i) {
    EXPECT_EQ(run.steps[run.critical_path[i]].rank, static_cast<std::int32_t>(i + 1) / 2);
  }
}

TEST(Simulator, ARingAllGatherTakesItsFormula) {
  for (const std::int32_t ranks : {3, 4, 8, 17}) {
    const std::int64_t chunk = 1 << 16;
    const Simulation run = simulate(ring_all_gather(ranks), ring(ranks), chunk);
    EXPECT_NEAR(run.time_us, (ranks - 1) * (kLatencyUs + us_of(chunk)), kTolerance) << ranks << " ranks";
    EXPECT_NEAR(run.algorithm_gbs, static_cast<double>(ranks * chunk) / run.time_us / 1e3, 1e-6);
  }
}

TEST(Simulator, APacketTakesTwiceItsPayload) {
  const std::int64_t bytes = 1 << 16;
  const Simulation run = simulate(packet_all_reduce(2), ring(2), bytes);
  EXPECT_NEAR(run.time_us, kLatencyUs + us_of(2 * bytes), kTolerance);
}

// Two blocks send a half each through one channel, one after the other.
TEST(Simulator, PartsOfATransferThroughAPortAddUp) {
  const std::int64_t bytes = 1 << 16;
  const Simulation run = simulate(port_packets_in_parts(2), ring(2), bytes);
  EXPECT_GE(run.time_us, kLatencyUs + us_of(2 * bytes) - kTolerance);
  EXPECT_LT(run.time_us, kLatencyUs + us_of(3 * bytes));
}

TEST(Simulator, LocalWorkTakesItsTime) {
  PlanBuilder builder = test_plan(1, 2);
  builder.at(0).copy(local(kI, 0), local(kS, 0)).move(OpKind::kReduce, {local(kI, 0), local(kI, 1)}, {local(kO, 0)});
  Topology topology = nodes(1);
  topology.local_latency = 500'000;
  topology.local_bandwidth = 20e-3;
  EXPECT_NEAR(simulate(builder.plan, topology, 2 << 20).time_us, 2 * 0.5 + us_of(3 << 20, 20), kTolerance);
}

TEST(Simulator, SmallTransfersGetPartOfTheBandwidth) {
  PlanBuilder builder = test_plan(2, 1);
  builder.at(0).put(1, local(kI, 0), kO, 0);
  Topology topology = ring(2);
  topology.efficiency.points = {{1000, 0.25}, {100'000, 0.75}};
  const std::pair<std::int64_t, double> cases[] = {{16, 0.25}, {1000, 0.25}, {10'000, 0.5}, {1'000'000, 0.75}};
  for (const auto& [bytes, part] : cases) {
    const Simulation run = simulate(builder.plan, topology, bytes);
    EXPECT_NEAR(run.time_us, kLatencyUs + us_of(bytes) / part, kTolerance) << bytes;
    EXPECT_DOUBLE_EQ(run.links.front().bytes, static_cast<double>(bytes));
  }
}

TEST(Simulator, EveryOperationButNopIsDispatched) {
  PlanBuilder builder = test_plan(2, 1);
  for (std::int32_t r = 0; r < 2; ++r) {
    builder.at(r).put(1 - r, local(kI, 0), kO, 0).nop().signal(1 - r).nop().wait(1 - r).nop();
  }
  Topology topology = ring(2);
  const double without = simulate(builder.plan, topology, 1000).time_us;
  topology.dispatch = static_cast<Picoseconds>(0.5 * kPicosecondsPerUs);
  // The wait is dispatched while the signal is on its way.
  EXPECT_NEAR(simulate(builder.plan, topology, 1000).time_us, without + 2 * 0.5, kTolerance);
}

TEST(Simulator, PacketsMayBeDispatchedFaster) {
  const Plan plan = packet_all_reduce(2);
  Topology topology = ring(2);
  const double without = simulate(plan, topology, 1000).time_us;
  // The reduction is dispatched while the other's packets are on their way.
  topology.dispatch = static_cast<Picoseconds>(0.5 * kPicosecondsPerUs);
  EXPECT_NEAR(simulate(plan, topology, 1000).time_us, without + 0.5, kTolerance);
  topology.packet_dispatch = static_cast<Picoseconds>(0.25 * kPicosecondsPerUs);
  EXPECT_NEAR(simulate(plan, topology, 1000).time_us, without + 0.25, kTolerance);
}

// A rank copies 20 GB/s, a thread block of it 5; packets are unpacked while others still come.
TEST(Simulator, AThreadBlockMayBeSlowerThanItsRank) {
  const std::int64_t bytes = 1 << 20;
  for (const std::int32_t blocks : {1, 2, 8}) {
    PlanBuilder builder = test_plan(1, 8);
    for (std::int32_t b = 0; b < blocks; ++b) builder.at(0, b).copy(local(kI, b), local(kS, b));
    Topology topology = nodes(1);
    topology.local_bandwidth = 20e-3;
    topology.block_bandwidth = 5e-3;
    EXPECT_NEAR(simulate(builder.plan, topology, 8 * bytes).time_us, us_of(bytes, std::min(5.0, 20.0 / blocks)),
                kTolerance)
        << blocks;
  }
  Topology topology = ring(2);
  topology.local_bandwidth = 20e-3;
  const double without = simulate(packet_all_reduce(2), topology, bytes).time_us;
  topology.block_bandwidth = 1e-3;
  EXPECT_EQ(simulate(packet_all_reduce(2), topology, bytes).time_us, without);
}

// Of a bandwidth of 1 a transfer gets half, one of packets a quarter, one that nobody reads an eighth.
TEST(Simulator, WhatIsMovedDecidesWhatPartOfABandwidthItGets) {
  Topology topology = ring(2);
  const auto part = [](double of_all) { return Efficiency{{{1, of_all}}}; };
  const std::int64_t bytes = 1 << 20;
  const auto into = [&](BufferKind buffer, std::int32_t read = -1, bool in_place = false) {
    PlanBuilder builder = test_plan(2, 2);
    builder.plan.in_place = in_place;
    builder.at(0).put(1, local(kI, 0), buffer, 1).signal(1);
    auto other = builder.at(1);
    other.wait(0);
    if (read >= 0) other.copy(local(kO, read), local(kS, 0));
    return simulate(builder.plan, topology, 2 * bytes).time_us - kLatencyUs;
  };
  topology.efficiency = part(0.5);
  EXPECT_NEAR(into(kO), us_of(2 * bytes), kTolerance);
  topology.unread_efficiency = part(0.125);
  EXPECT_NEAR(into(kS), us_of(2 * bytes), kTolerance);
  EXPECT_NEAR(into(kO), us_of(8 * bytes), kTolerance);
  EXPECT_NEAR(into(kO, 0), us_of(8 * bytes), kTolerance);  // another chunk is read
  EXPECT_NEAR(into(kO, 1), us_of(2 * bytes), kTolerance);
  EXPECT_NEAR(into(kO, -1, true), us_of(2 * bytes), kTolerance);  // the other's input may lie there

  const double by_packets = simulate(packet_all_reduce(2), topology, bytes).time_us - kLatencyUs;
  EXPECT_NEAR(by_packets, us_of(4 * bytes), kTolerance);
  topology.packet_efficiency = part(0.25);
  EXPECT_NEAR(simulate(packet_all_reduce(2), topology, bytes).time_us - kLatencyUs, us_of(8 * bytes), kTolerance);
  topology.local_bandwidth = 1e-3;
  const double unpacked = simulate(packet_all_reduce(2), topology, bytes).time_us;
  topology.local_packet_efficiency = part(0.5);
  const double by_half = simulate(packet_all_reduce(2), topology, bytes).time_us;
  EXPECT_GT(by_half, unpacked + 1);
  topology.packet_reduce_efficiency = part(0.25);
  EXPECT_GT(simulate(packet_all_reduce(2), topology, bytes).time_us, by_half + 1);

  const auto alone = [&](bool reduces) {
    PlanBuilder builder = test_plan(1, 1);
    auto block = builder.at(0);
    if (reduces) block.move(OpKind::kReduce, {local(kI, 0), local(kS, 0)}, {local(kO, 0)});
    if (!reduces) block.copy(local(kI, 0), local(kO, 0));
    return simulate(builder.plan, topology, bytes).time_us;
  };
  EXPECT_NEAR(alone(false), us_of(bytes, 1), kTolerance);
  EXPECT_NEAR(alone(true), us_of(2 * bytes, 1), kTolerance);
  topology.reduce_efficiency = part(0.5);
  EXPECT_NEAR(alone(false), us_of(bytes, 1), kTolerance);
  EXPECT_NEAR(alone(true), us_of(4 * bytes, 1), kTolerance);
}

// A link of 10 GB/s, and 20 within a rank.
TEST(Simulator, AReductionMaySendMeanwhileOrAfterwards) {
  PlanBuilder builder = test_plan(2, 2);
  const auto block = builder.at(0);
  const Operand there = block.remote(ChannelKind::kMemory, 1, kS, 0);
  block.move_memory(OpKind::kReduceSend, {local(kI, 0), local(kS, 0)}, {local(kO, 0), there});
  const std::int64_t bytes = 1 << 20;
  Topology topology = ring(2);
  topology.local_bandwidth = 20e-3;
  EXPECT_NEAR(simulate(builder.plan, topology, 2 * bytes).time_us, kLatencyUs + us_of(bytes), kTolerance);
  topology.in_turn = true;
  EXPECT_NEAR(simulate(builder.plan, topology, 2 * bytes).time_us, kLatencyUs + us_of(bytes) + us_of(2 * bytes, 20),
              kTolerance);
}

TEST(Simulator, ACallTakesTimeBesideItsOperations) {
  const auto put_into = [](BufferKind buffer) {
    PlanBuilder builder = test_plan(2, 1);
    builder.at(0, 0).put(1, local(kI, 0), buffer, 0).signal(1);
    builder.at(1, 0).wait(0);
    return builder.plan;
  };
  Topology topology = ring(2);
  const double without = simulate(put_into(kO), topology, 1000).time_us;
  EXPECT_NEAR(simulate(put_into(kS), topology, 1000).time_us, without, kTolerance);
  topology.call = static_cast<Picoseconds>(2 * kPicosecondsPerUs);
  topology.agree = static_cast<Picoseconds>(0.5 * kPicosecondsPerUs);
  EXPECT_NEAR(simulate(put_into(kS), topology, 1000).time_us, without + 2, kTolerance);
  const Simulation reaching = simulate(put_into(kO), topology, 1000);
  EXPECT_NEAR(reaching.time_us, without + 2.5, kTolerance);
  EXPECT_EQ(reaching.steps.front().turn, topology.call + topology.agree);
}

TEST(Simulator, BarriersAndSemaphoresOrderBlocks) {
  PlanBuilder builder = test_plan(2, 2);
  builder.plan.ranks[0].semaphores = {0};
  builder.at(0, 0).put(1, local(kI, 0), kO, 0).release(0).barrier(0, 2);
  builder.at(0, 1).acquire(0).put(1, local(kI, 1), kO, 1).barrier(0, 2);
  builder.at(0, 0).put(1, local(kI, 0), kS, 0);
  const std::int64_t chunk = 1 << 20;
  EXPECT_NEAR(simulate(builder.plan, ring(2), 2 * chunk).time_us, kLatencyUs + us_of(3 * chunk), kTolerance);
}

TEST(Simulator, AMulticastTreeCrossesALinkOnce) {
  constexpr std::int32_t kRanks = 4;
  PlanBuilder builder = test_plan(kRanks, 1);
  const auto block = builder.at(0);
  for (std::int32_t r = 1; r < kRanks; ++r) builder.at(r).group(kO, 0);
  Operation store;
  store.kind = OpKind::kGroupStore;
  store.channel = ChannelKind::kSwitch;
  store.sources = {local(kI, 0)};
  store.destinations = {block.group(kO, 0)};
  block.add(store);
  Topology topology = star(kRanks);
  const std::int64_t bytes = 1 << 20;
  EXPECT_NEAR(simulate(builder.plan, topology, bytes).time_us, kLatencyUs + us_of((kRanks - 1) * bytes), kTolerance);
  topology.multicast = true;
  EXPECT_NEAR(simulate(builder.plan, topology, bytes).time_us, kLatencyUs + us_of(bytes), kTolerance);
}

TEST(Simulator, AStuckPlanNamesWhoIsBlocked) {
  PlanBuilder builder = test_plan(2, 1);
  builder.at(0).wait(1).signal(1);
  builder.at(1).wait(0).signal(0);
  try {
    simulate(builder.plan, ring(2), 16);
    FAIL() << "it is stuck";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    const std::string text = error.what();
    EXPECT_NE(text.find("rank 0, thread block 0, operation 0 (wait) waits for a signal from rank 1"), text.npos)
        << text;
    EXPECT_NE(text.find("rank 1, thread block 0, operation 0 (wait) waits for a signal from rank 0"), text.npos)
        << text;
  }
}

TEST(Simulator, BoundsAreThoseOfTheTopology) {
  const std::int64_t bytes = 1 << 20;
  const Simulation gather = simulate(all_pairs_all_gather(4), star(4), bytes);
  EXPECT_NEAR(gather.bounds.latency_us, kLatencyUs, kTolerance);
  EXPECT_NEAR(gather.bounds.bandwidth_us, us_of(3 * bytes), kTolerance);
  EXPECT_NEAR(gather.time_us, 2 * kLatencyUs + us_of(3 * bytes), kTolerance);  // it first asks whether it may write
  const Simulation reduce = simulate(ring_all_reduce(4), star(4), bytes);
  EXPECT_NEAR(reduce.bounds.bandwidth_us, us_of(2 * 3 * bytes / 4), kTolerance);
  Topology multicast = star(4);
  multicast.multicast = true;
  EXPECT_NEAR(simulate(ring_all_reduce(4), multicast, bytes).bounds.bandwidth_us, us_of(bytes), kTolerance);
}

TEST(Simulator, IsDeterministicMonotonicAndAboveItsBounds) {
  std::vector<Plan> plans{ring_all_reduce(5), all_pairs_all_gather(6), packet_all_reduce(5),
                          tree_all_reduce(7), doubling_all_reduce(8),  ring_all_gather(6)};
  for (const Case& right : right_cases()) plans.push_back(right.plan);
  for (const Plan& plan : plans) {
    const auto ranks = static_cast<std::int32_t>(plan.ranks.size());
    for (const bool is_star : {true, false}) {
      const auto at = [&](std::int64_t bytes, double gbs) {
        return simulate(plan, is_star ? star(ranks, kLatencyUs, gbs) : ring(std::max(ranks, 2), kLatencyUs, gbs),
                        bytes);
      };
      double before = 0;
      for (const std::int64_t bytes :
           {std::int64_t{0}, std::int64_t{16}, std::int64_t{1} << 12, std::int64_t{1} << 16}) {
        const Simulation run = at(bytes, kGbs);
        EXPECT_GE(run.time_us, before - kTolerance) << plan.name << ", " << bytes;
        before = run.time_us;
        EXPECT_LE(at(bytes, 2 * kGbs).time_us, run.time_us + kTolerance) << plan.name << ", " << bytes;
        EXPECT_GE(run.time_us, run.bounds.latency_us - kTolerance) << plan.name << ", " << bytes;
        EXPECT_GE(run.time_us, run.bounds.bandwidth_us - kTolerance) << plan.name << ", " << bytes;
        const Simulation again = at(bytes, kGbs);
        ASSERT_EQ(run.steps.size(), again.steps.size());
        EXPECT_EQ(run.critical_path, again.critical_path);
        for (std::size_t i = 0; i < run.steps.size(); ++i) {
          ASSERT_EQ(run.steps[i].begin, again.steps[i].begin);
          ASSERT_EQ(run.steps[i].end, again.steps[i].end);
          ASSERT_LT(run.steps[i].cause, static_cast<std::int32_t>(i));
        }
      }
    }
  }
}

TEST(Simulator, StopsAtItsBudgetWithAnEstimate) {
  const Plan plan = ring_all_gather(48);
  const Simulation whole = simulate(plan, ring(48), 1 << 16);
  EXPECT_TRUE(whole.complete);
  const Simulation part = simulate(plan, ring(48), 1 << 16, 0.0);
  EXPECT_FALSE(part.complete);
  EXPECT_GT(part.done, 0);
  EXPECT_LT(part.done, 1);
  EXPECT_NEAR(part.time_us, whole.time_us, 0.5 * whole.time_us);
}

// Where a loop waits for nothing, time stands still and no event ends it.
TEST(Simulator, StopsAtItsBudgetWithinALoopThatTakesNoTime) {
  Operation nop;
  nop.kind = OpKind::kNop;
  for (const std::size_t body : {1, 1024}) {  // 2^54 iterations of 1024 are more than 64 bits count
    PlanBuilder builder = test_plan(1, 1);
    builder.at(0).add(loop_of(1, std::vector<Operation>(body, nop), 16));
    const Simulation part = simulate(builder.plan, nodes(1), std::int64_t{1} << 58, 0.0);
    EXPECT_FALSE(part.complete);
    EXPECT_GT(part.done, 0);
    EXPECT_LT(part.done, 1e-9) << body;
  }
}

TEST(Simulator, WhatASemaphoreBeginsWithIsTakenFirst) {
  PlanBuilder builder = test_plan(2, 1);
  builder.plan.ranks[0].semaphores = {2};
  builder.at(0, 0).put(1, local(kI, 0), kO, 0).release(0);
  builder.at(0, 1).acquire(0).acquire(0).acquire(0);
  const Simulation run = simulate(builder.plan, ring(2), 1 << 20);
  std::vector<double> begins;
  for (const TimelineStep& step : run.steps) {
    if (step.block == 1) begins.push_back(static_cast<double>(step.begin) / kPicosecondsPerUs);
  }
  ASSERT_EQ(begins.size(), 3u);
  EXPECT_EQ(begins[0], 0);
  EXPECT_EQ(begins[1], 0);
  EXPECT_NEAR(begins[2], us_of(1 << 20), kTolerance);
}

TEST(Simulator, WhatSemaphoresBeginWithIsANumber) {
  PlanBuilder builder = test_plan(1, 1);
  builder.plan.ranks[0].semaphores.assign(128, kMaxCredit);
  builder.at(0).nop();
  const auto kilobytes = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const auto before = kilobytes();
  simulate(builder.plan, nodes(1), 16);
  EXPECT_LT(kilobytes() - before, 128 * 1024);  // a byte each
}

TEST(Simulator, HundredsOfRanksTakeSeconds) {
  if (test::kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  constexpr double kBudgetS = 60;  // far above what it takes, for slow machines
  const std::vector<Plan> plans{doubling_all_reduce(512), tree_all_reduce(512), ring_all_reduce(128),
                                all_pairs_all_gather(64)};
  for (const Plan& plan : plans) {
    const auto ranks = static_cast<std::int32_t>(plan.ranks.size());
    const Simulation run = simulate(plan, star(ranks), 1 << 20, kBudgetS);
    EXPECT_TRUE(run.complete) << ranks << " ranks";
    EXPECT_GE(run.time_us, run.bounds.bandwidth_us) << ranks << " ranks";
  }
}

TEST(Simulator, RefusesATopologyThatDoesNotFit) {
  EXPECT_THROW(simulate(ring_all_gather(4), ring(3), 16), Error);
  EXPECT_THROW(simulate(ring_all_gather(4), nodes(4), 16), Error);  // no links
}

}  // namespace
}  // namespace tutti::plan
