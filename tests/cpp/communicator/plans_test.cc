// Plans from files as algorithms of a communicator.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <functional>

#include "algorithm/plan/plan_admission.h"
#include "algorithm/plan/plan_algorithm.h"
#include "communicator/formed_group.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "executor/executor_plans.h"
#include "plan/plan_builder.h"
#include "plan/structure.h"
#include "support/sanitized.h"

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
plan::Plan port(std::int32_t ranks) { return plan::port_all_gather(ranks); }
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
    {"port", Collective::kAllGather, port},
    {"gather_in_place", Collective::kAllGather, plan::in_place_all_gather},
    {"split", Collective::kAllToAll, plan::split_all_to_all},
    {"read", Collective::kReduceScatter, plan::read_reduce_scatter},
    {"broadcast", Collective::kBroadcast, broadcast},
    {"gather", Collective::kGather, gather},
    {"scatter", Collective::kScatter, scatter},
    {"reduce", Collective::kReduce, reduce},
};

constexpr std::size_t kSeveralSegments = kSanitized ? 140'003 : 300'007;
// Zero, one, odd, around a chunk, around one and several segments.
constexpr std::size_t kPlanCounts[] = {0, 1, 3, 15, 16, 17, 1001, 65'535, 65'600, kSeveralSegments};

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
    for (const std::size_t count : kPlanCounts) {
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

// Reduces into the input before it copies to the output.
plan::Plan reduce_scatter_in_input(std::int32_t ranks) {
  plan::Plan made = plan::read_reduce_scatter(ranks);
  for (std::int32_t r = 0; r < ranks; ++r) {
    auto& operations = made.ranks[static_cast<std::size_t>(r)].blocks[0].operations;
    const auto reduces = std::find_if(operations.begin(), operations.end(),
                                      [](const plan::Operation& op) { return op.kind == plan::OpKind::kReadReduce; });
    plan::Operation copy;
    copy.kind = plan::OpKind::kCopy;
    copy.sources = {plan::local(plan::kI, r)};
    copy.destinations = reduces->destinations;
    reduces->destinations = {plan::local(plan::kI, r)};
    operations.insert(reduces + 2, copy);  // behind the nop
  }
  return made;
}

TEST(Plans, TheCallersInputStaysAsItWas) {
  for (const bool declared : {false, true}) {
    PlanFolder folder;
    plan::Plan made = reduce_scatter_in_input(2);
    made.writes_input = declared;
    const std::string file = folder.add("uses_input", made);
    World world;
    world.plan_path_of = [&](int) { return file; };
    run_ranks(world, [](Communicator& c) {
      int salt = 0;
      for (const bool mapped : {false, true}) {
        for (const std::size_t count : {std::size_t{5}, kSeveralSegments}) {
          run_once(c, Collective::kReduceScatter, count, {mapped, false, ReduceOp::kSum, -1}, ++salt);
        }
      }
      EXPECT_TRUE(ran(c, "plan:uses_input"));
    });
  }
}

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
          for (const std::size_t count : {std::size_t{5}, kSeveralSegments})
            run_once(c, Collective::kAllReduce, count, v, ++salt);
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
  std::vector<std::string> errors(2);
  world.errors = &errors;
  run_ranks(world, [](Communicator&) { FAIL() << "the group has formed"; });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("TUTTI_PLAN_PATH is " + file + " (with the plans "), std::string::npos) << error;
    EXPECT_NE(error.find(" on rank 0 and unset on rank 1"), std::string::npos) << error;
  }
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
  EXPECT_EQ(std::string(error.what())
                .rfind("TUTTI_PLAN_PATH: " + file + ": plan: /gpus/1/threadblocks/0/ops/3/src_buff/0", 0),
            0U)
      << error.what();
  options.config.plan_path = "/nowhere/at/all.json";
  const Error missing = error_of([&] { Communicator::create(store, "test", 0, 2, options); });
  EXPECT_EQ(std::string(missing.what()).rfind("TUTTI_PLAN_PATH: /nowhere/at/all.json: ", 0), 0U) << missing.what();
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
  EXPECT_EQ(std::string(error.what()).rfind("TUTTI_PLAN_PATH: " + file + ": race: ", 0), 0U) << error.what();
}

// One rank's all-reduce of four floats without a communicator, for which load_plans() and the lock would be in the way.
class BareCall {
 public:
  BareCall(const FormedGroup& formed, int rank, std::uint64_t sequence, std::chrono::milliseconds timeout)
      : host_(*formed.host) {
    call_.collective = Collective::kAllReduce;
    call_.dtype = DataType::kFloat32;
    call_.count = 4;
    call_.input = call_.output = Blocks::single(data, sizeof data);
    context.rank = rank;
    context.size = host_.ranks();
    context.host = &host_;
    context.deadline = Deadline::after(timeout);
    context.record.sequence = sequence;
    context.record.mapped_input = context.record.mapped_output = kNotMapped;
    context.record.hash = fingerprint(context.record);
  }

  Outcome run(const Algorithm& algorithm) {
    Deadline enough = Deadline::after(std::chrono::milliseconds(10'000));
    if (Outcome outcome = host_.begin_and_announce(context.record, enough); !outcome.ok()) return outcome;
    if (Outcome outcome = host_.await_records(enough); !outcome.ok()) return outcome;
    return algorithm.run(call_, context);
  }

  float data[4] = {1, 2, 3, 4};
  CallState state;
  CallContext context{state};

 private:
  HostChannel& host_;
  Call call_;
};

// A test's `body` for two ranks, with the algorithm that a plan makes.
void run_two_ranks(const std::shared_ptr<const plan::Plan>& made,
                   const std::function<void(const FormedGroup&, int rank, const Algorithm&)>& body) {
  MemoryStore store;
  const auto rank_body = [&](int rank) {
    CommunicatorOptions options;
    options.timeout = std::chrono::milliseconds(20'000);
    const FormedGroup formed = form_group(store, made->name, rank, 2, options);
    const auto algorithms =
        plan_algorithms({{made->name + ".json", made}}, GroupPlace{rank, formed.ranks, formed.host.get()});
    ASSERT_EQ(algorithms.size(), 1U);
    body(formed, rank, *algorithms[0]);
  };
  std::thread other(rank_body, 1);
  rank_body(0);
  other.join();
}

// A peer's place is used only if all of its block lies in its arena.
TEST(Plans, APlaceOutsideOfAPeersArenaIsFound) {
  const auto made = std::make_shared<plan::Plan>(plan::two_step_all_reduce(2));
  for (const std::uint64_t place : {std::uint64_t{1} << 50, std::uint64_t{8}, kNotMapped - 64}) {
    run_two_ranks(made, [&](const FormedGroup& formed, int rank, const Algorithm& algorithm) {
      BareCall call(formed, rank, 1, std::chrono::milliseconds(10'000));
      if (rank == 0) {
        const Outcome outcome = call.run(algorithm);
        EXPECT_EQ(outcome.status, Status::kCorrupt);
        EXPECT_EQ(outcome.peer, 1);
        return;
      }
      HostChannel& host = *formed.host;
      Deadline enough = Deadline::after(std::chrono::milliseconds(10'000));
      ASSERT_TRUE(host.begin_and_announce(call.context.record, enough).ok());
      ASSERT_TRUE(host.await_records(enough).ok());
      std::memcpy(host.stage(1), &place, sizeof place);
      host.publish(StepLane::kFilled, host.step_base() + 1);
      EXPECT_TRUE(host.await_step(0, StepLane::kFilled, host.step_base() + 1, enough).ok());
    });
  }
}

// A rank that waits takes every step of its plan that it can while it asks whether it can, so a step may be told once.
TEST(Plans, AWaitEndsWhenItsConditionHasHeldOnce) {
  struct Once final : HostChannel::Condition {
    explicit Once(int at) : yes(at) {}
    bool holds() noexcept override { return ++asked == yes || asked > 80; }
    int yes, asked = 0;
  };
  MemoryStore store;
  std::barrier done(2);
  const auto rank_body = [&](int rank) {
    CommunicatorOptions options;
    options.config.spins = 0;
    const FormedGroup formed = form_group(store, "once", rank, 2, options);
    // Where each rank has a core: 64 looks without a pause, one after asking for the peer, one just before it sleeps.
    for (int yes = 1; rank == 0 && yes <= 67; ++yes) {
      Once once(yes);
      Deadline deadline = Deadline::after(std::chrono::milliseconds(20'000));
      EXPECT_TRUE(formed.host->await_condition(1, once, deadline).ok());
      EXPECT_EQ(once.asked, yes);
    }
    done.arrive_and_wait();
  };
  std::thread other(rank_body, 1);
  rank_body(0);
  other.join();
}

// No such plan gets through load_plans().
TEST(Plans, AStuckPlanTimesOutAndSaysWhere) {
  auto stuck = std::make_shared<plan::Plan>(plan::two_step_all_reduce(2));
  stuck->name = "stuck";
  auto& operations = stuck->ranks[1].blocks[0].operations;
  operations.erase(std::find_if(operations.begin(), operations.end(),
                                [](const plan::Operation& op) { return op.kind == plan::OpKind::kSignal; }));
  std::barrier both_have_waited(2);  // who leaves first would be all that the other sees
  run_two_ranks(stuck, [&](const FormedGroup& formed, int rank, const Algorithm& algorithm) {
    BareCall call(formed, rank, 1, std::chrono::milliseconds(200));
    const Outcome outcome = call.run(algorithm);
    const std::string& detail = call.context.detail;
    EXPECT_EQ(outcome.status, Status::kTimeout);
    EXPECT_NE(detail.find("plan \"stuck\": rank " + std::to_string(rank) + " waits in thread block"), std::string::npos)
        << detail;
    if (rank == 0) {
      EXPECT_NE(detail.find("(wait) for a signal of rank 1"), std::string::npos) << detail;
      EXPECT_EQ(outcome.peer, 1);
    }
    both_have_waited.arrive_and_wait();
  });
}

// What runs a plan holds it: one hold more for each rank's runner.
TEST(Plans, ARunnerIsMadeAtTheFirstCallAndKept) {
  auto made = std::make_shared<plan::Plan>(plan::two_step_all_reduce(2));
  made->name = "late";
  const std::shared_ptr<const plan::Plan> plan = made;
  std::barrier both(2);
  long before = 0;
  run_two_ranks(plan, [&](const FormedGroup& formed, int rank, const Algorithm& algorithm) {
    both.arrive_and_wait();
    if (rank == 0) before = plan.use_count();
    both.arrive_and_wait();
    for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
      BareCall call(formed, rank, sequence, std::chrono::milliseconds(10'000));
      EXPECT_TRUE(call.run(algorithm).ok());
      EXPECT_EQ(call.data[3], 8);
      both.arrive_and_wait();
      EXPECT_EQ(plan.use_count(), before + 2) << "call " << sequence;
      both.arrive_and_wait();
    }
  });
}

// A group that finds its plans proven and tried decodes none.
TEST(Plans, LaterGroupsOfAProcessTryNothingAgain) {
  PlanFolder folder;
  folder.add("once_a_process", plan::two_step_all_reduce(2));
  World world;
  world.plan_path_of = [&](int) { return folder.path(); };
  const auto call = [](Communicator& c) {
    run_once(c, Collective::kAllReduce, 100, {}, 1);
    EXPECT_TRUE(ran(c, "plan:once_a_process"));
  };
  const std::uint64_t before = PlanAdmissions::of_process().trials();
  run_ranks(world, call);
  EXPECT_EQ(PlanAdmissions::of_process().trials(), before + 2) << "each rank tries its own part";
  run_ranks(world, call);
  EXPECT_EQ(PlanAdmissions::of_process().trials(), before + 2);
}

}  // namespace
}  // namespace tutti::test
