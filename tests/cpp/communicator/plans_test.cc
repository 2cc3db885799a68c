// Plans from files as algorithms of a communicator.
#include <gtest/gtest.h>

#include <barrier>

#include "algorithm/plan/plan_algorithm.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "communicator/topology.h"
#include "executor/executor_plans.h"
#include "plan/plan_builder.h"
#include "plan/structure.h"

namespace tutti::test {
namespace {

struct Subject {
  const char* name;
  Collective collective;
  plan::Plan (*make)(std::int32_t ranks);
};

plan::Plan loop(std::int32_t ranks) { return plan::looped_all_reduce(ranks, 4096); }
plan::Plan broadcast(std::int32_t ranks) { return plan::put_broadcast(ranks, ranks - 1); }

plan::Plan gather(std::int32_t ranks) { return plan::put_gather(ranks, ranks - 1); }
plan::Plan scatter(std::int32_t ranks) { return plan::get_scatter(ranks, ranks - 1); }
plan::Plan reduce(std::int32_t ranks) { return plan::read_reduce(ranks, ranks - 1); }

plan::Plan in_place_ring(std::int32_t ranks) {
  plan::Plan made = plan::ring_all_reduce(ranks);
  made.in_place = true;
  return made;
}

const Subject kSubjects[] = {
    {"two_step", Collective::kAllReduce, plan::two_step_all_reduce},
    {"packets", Collective::kAllReduce, plan::packet_two_step_all_reduce},
    {"switch", Collective::kAllReduce, plan::switch_all_reduce},
    {"ring", Collective::kAllReduce, plan::ring_all_reduce},
    {"ring_in_place", Collective::kAllReduce, in_place_ring},
    {"loop", Collective::kAllReduce, loop},
    {"port", Collective::kAllGather, plan::port_all_gather},
    {"gather_in_place", Collective::kAllGather, plan::in_place_all_gather},
    {"split", Collective::kAllToAll, plan::split_all_to_all},
    {"read", Collective::kReduceScatter, plan::read_reduce_scatter},
    {"broadcast", Collective::kBroadcast, broadcast},
    {"gather", Collective::kGather, gather},
    {"scatter", Collective::kScatter, scatter},
    {"reduce", Collective::kReduce, reduce},
};

class FromFile : public testing::TestWithParam<std::tuple<int, Subject>> {};

TEST_P(FromFile, ComputesItsCollective) {
  const auto& [ranks, subject] = GetParam();
  PlanFolder folder;
  const std::string file = folder.add(subject.name, subject.make(ranks));
  World world;
  world.size = ranks;
  world.plan_path_of = [&](int) { return file; };
  const bool broadcasts = subject.collective == Collective::kBroadcast;
  const bool rooted = is_rooted(subject.collective);
  run_ranks(world, [&](Communicator& c) {
    int salt = 0;
    // Zero, one, odd, around a chunk, around one and several segments.
    for (const std::size_t count : {0, 1, 3, 15, 16, 17, 1001, 65'535, 65'600, 300'007}) {
      for (const bool mapped : {false, true}) {
        for (const bool in_place : {false, true}) {
          Variant v{mapped, in_place || broadcasts, ReduceOp::kSum, rooted ? c.size() - 1 : -1};
          // No call may say that it is in place in these.
          if (subject.collective == Collective::kAllToAll || (rooted && !broadcasts)) v.in_place = false;
          run_once(c, subject.collective, count, v, ++salt);
        }
      }
    }
    if (subject.collective == Collective::kAllReduce || subject.collective == Collective::kReduceScatter) {
      run_once(c, subject.collective, 70'001, {false, false, ReduceOp::kAvg, -1}, ++salt);
      run_once(c, subject.collective, 70'001, {true, true, ReduceOp::kAvg, -1}, ++salt);
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    EXPECT_TRUE(ran(c, std::string("plan:") + subject.name));
    for (const MetricsRow& row : c.metrics().rows) EXPECT_EQ(row.algorithm, std::string("plan:") + subject.name);
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, FromFile, testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(kSubjects)),
                         [](const auto& test) {
                           return std::string(std::get<1>(test.param).name) + "_" +
                                  std::to_string(std::get<0>(test.param));
                         });

// Whether a rank's input is its output is that rank's own affair.
TEST(Plans, RanksMayDifferInBeingInPlace) {
  for (const auto make : {plan::two_step_all_reduce, plan::switch_all_reduce, in_place_ring}) {
    PlanFolder folder;
    const std::string file = folder.add("mixed", make(2));
    World world;
    world.plan_path_of = [&](int) { return file; };
    run_ranks(world, [](Communicator& c) {
      int salt = 0;
      for (const bool mapped : {false, true}) {
        for (int who = 0; who < c.size(); ++who) {
          const Variant v{mapped, c.rank() == who, ReduceOp::kSum, -1};
          for (const std::size_t count : {5, 300'007}) run_once(c, Collective::kAllReduce, count, v, ++salt);
        }
      }
    });
  }
}

// Ranks of a call that a plan does not serve go on with the library's own algorithms.
TEST(Plans, WhatTheyDoNotServeIsServedOtherwise) {
  PlanFolder folder;
  plan::Plan small = plan::two_step_all_reduce(2);
  small.max_message_bytes = 1024;
  folder.add("a_small", small);
  folder.add("b_other_world", plan::switch_all_reduce(3));
  World world;
  world.plan_path_of = [&](int) { return folder.path(); };
  run_ranks(world, [](Communicator& c) {
    run_once(c, Collective::kAllReduce, 5000, {}, 1);
    run_once(c, Collective::kAllGather, 10, {}, 1);
    EXPECT_FALSE(ran(c, "plan:a_small"));
    run_once(c, Collective::kAllReduce, 10, {}, 2);
    EXPECT_TRUE(ran(c, "plan:a_small"));
    EXPECT_FALSE(ran(c, "plan:b_other_world"));
  });
}

TEST(Plans, RanksWithDifferentPlansAreToldSo) {
  PlanFolder folder;
  const std::string file = folder.add("one", plan::two_step_all_reduce(2));
  World world;
  world.plan_path_of = [&](int rank) { return rank == 0 ? file : std::string(); };
  run_ranks(world, [](Communicator& c) {
    const Error error = error_of([&] { run_once(c, Collective::kAllReduce, 10, {}, 1); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("with the plans"), std::string::npos) << error.what();
  });
}

TEST(Plans, ABadFileIsNamed) {
  PlanFolder folder;
  plan::Plan bad = plan::two_step_all_reduce(2);
  bad.ranks[1].blocks[0].operations[3].sources[0].index = 99;
  const std::string file = folder.add("bad", bad);
  World world;
  world.plan_path_of = [&](int) { return folder.path(); };
  MemoryStore store;
  CommunicatorOptions options;
  options.config.plan_path = folder.path();
  const Error error = error_of([&] { Communicator::create(store, "test", 0, 2, options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(std::string(error.what()).rfind(file + ": plan: /gpus/1/threadblocks/0/ops/3/src_buff/0", 0), 0U)
      << error.what();
  options.config.plan_path = "/nowhere/at/all.json";
  const Error missing = error_of([&] { Communicator::create(store, "test", 0, 2, options); });
  EXPECT_EQ(std::string(missing.what()).rfind("/nowhere/at/all.json: ", 0), 0U) << missing.what();
}

TEST(Plans, ARacyFileIsRefused) {
  PlanFolder folder;
  plan::Plan racy = plan::two_step_all_reduce(2);
  std::erase_if(racy.ranks[1].blocks[2].operations,
                [](const plan::Operation& op) { return op.kind == plan::OpKind::kSemAcquire; });
  std::erase_if(racy.ranks[1].blocks[1].operations,
                [](const plan::Operation& op) { return op.kind == plan::OpKind::kSemRelease; });
  const std::string file = folder.add("racy", racy);
  MemoryStore store;
  CommunicatorOptions options;
  options.config.plan_path = file;
  const Error error = error_of([&] { Communicator::create(store, "test", 0, 2, options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(std::string(error.what()).rfind(file + ": race: ", 0), 0U) << error.what();
}

// No such plan gets through load_plans(), so the ranks meet without a communicator.
TEST(Plans, AStuckPlanTimesOutAndSaysWhere) {
  auto stuck = std::make_shared<plan::Plan>(plan::two_step_all_reduce(2));
  stuck->name = "stuck";
  auto& operations = stuck->ranks[1].blocks[0].operations;
  operations.erase(std::find_if(operations.begin(), operations.end(),
                                [](const plan::Operation& op) { return op.kind == plan::OpKind::kSignal; }));
  MemoryStore store;
  std::barrier both_have_waited(2);  // who leaves first would be all that the other sees
  const auto body = [&](int rank) {
    CommunicatorOptions options;
    options.timeout = std::chrono::milliseconds(20'000);
    const Topology topology = form_topology(store, "stuck", rank, 2, options);
    PlanFiles files;
    files.files.push_back({"stuck.json", stuck});
    const auto algorithms = plan_algorithms(files.files, PlanWorld::of_one_host(*topology.host));
    ASSERT_EQ(algorithms.size(), 1U);
    float data[4] = {1, 2, 3, 4};
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = 4;
    call.input = call.output = Blocks::single(data, sizeof data);
    CallContext context;
    context.rank = rank;
    context.size = 2;
    context.host = topology.host.get();
    context.deadline = Deadline::after(std::chrono::milliseconds(200));
    context.record.sequence = 1;
    context.record.mapped_input = context.record.mapped_output = kNotMapped;
    context.record.hash = fingerprint(context.record);
    Deadline enough = Deadline::after(std::chrono::milliseconds(10'000));
    ASSERT_TRUE(topology.host->begin_and_announce(context.record, enough).ok());
    ASSERT_TRUE(topology.host->await_all(enough).ok());
    const Outcome outcome = algorithms[0]->run(call, context);
    EXPECT_EQ(outcome.status, Status::kTimeout);
    EXPECT_NE(context.detail.find("plan \"stuck\": rank " + std::to_string(rank) + " waits in thread block"),
              std::string::npos)
        << context.detail;
    if (rank == 0) {
      EXPECT_NE(context.detail.find("(wait) for a signal of rank 1"), std::string::npos) << context.detail;
      EXPECT_EQ(outcome.peer, 1);
    }
    both_have_waited.arrive_and_wait();
  };
  std::thread other(body, 1);
  body(0);
  other.join();
}

}  // namespace
}  // namespace tutti::test
