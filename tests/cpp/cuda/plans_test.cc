// Plans as GPUs run them, against the executor for CPUs: the same bits.
#include <algorithm>

#include "cuda/plan_cases.h"
#include "cuda/plan_twin.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "plan/structure.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

// In and out of place in turn, and sizes: less than a chunk of each block, uneven ends, several segments.
TEST(PlansOnGpus, GiveTheBitsOfTheExecutorForCpus) {
  auto all = programs();
  for (auto& named : plan::plans_of_every_operation(2)) all.push_back(std::move(named));
  ASSERT_GE(all.size(), 45u);
  for (const auto& [name, plan] : all) {
    Twin twin(plan, 1 << 16);
    std::uint64_t seed = 0;
    for (const std::size_t bytes : {4, 1004, 260}) {
      const PlanRequest request{bytes, DataType::kFloat32, ReduceOp::kSum, seed % 2 == 1};
      const std::string fault = twin.fault(request, ++seed);
      ASSERT_EQ(fault, "") << name << ", " << plan->ranks.size() << " ranks, " << bytes << " bytes";
    }
  }
}

// A message of many segments, each an invocation of its own.
TEST(PlansOnGpus, LongMessagesRunInSegments) {
  for (auto& [name, plan] : plan::plans_of_every_operation(2)) {
    const executor::DeviceLimits least{64, executor::DevicePlan(plan, 0, {64, 1UL << 20}).memory_bytes() / 16};
    Twin twin(plan, 1 << 16, least);
    ASSERT_LT(twin.device.plans[0]->segment_bytes(), 50'004u) << name;
    const ReduceOp op = reducing(*plan) ? ReduceOp::kAvg : ReduceOp::kSum;
    EXPECT_EQ(twin.fault({50'004, DataType::kFloat32, op}, 5), "") << name;
  }
}

TEST(PlansOnGpus, EveryTypeAndOperation) {
  for (const auto& made : {plan::packet_all_reduce(2), plan::ring_all_reduce(2)}) {
    const auto shared = any_reduction(made);
    Twin twin(shared, 1 << 12);
    int pairs = 0;
    for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        const PlanRequest request{480, static_cast<DataType>(dtype), static_cast<ReduceOp>(op), op % 2 == 1};
        if (request.op == ReduceOp::kPremulSum || size_of(request.dtype) == 0 ||
            executor::refusal(*shared, request.dtype, request.op) != nullptr) {
          continue;
        }
        ++pairs;
        EXPECT_EQ(twin.fault(request, static_cast<std::uint64_t>(dtype * 16 + op)), "")
            << to_string(request.dtype) << " " << to_string(request.op);
      }
    }
    EXPECT_GT(pairs, 100);
  }
}

// Blocks of several lanes: what they must not do before others have.
TEST(PlansOnGpus, LanesJoinWhereTheyMust) {
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    Twin twin(plan, 1 << 12);
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      PlanRequest request{200 + 16 * seed, DataType::kFloat32, ReduceOp::kSum, seed % 2 == 0};
      request.workers = 3;
      ASSERT_EQ(twin.fault(request, seed), "") << name;
    }
  }
}

// What packets tell, they tell one lane; a nop tells it to all of its block.
TEST(PlansOnGpus, ANopJoinsTheLanes) {
  const auto joins = [](const Plan& plan) {
    const executor::DevicePlan device(std::make_shared<const Plan>(plan), 0, {64, 1UL << 20});
    std::vector<std::byte> memory(device.memory_bytes() * 4);
    const executor::DeviceRecords made = device.records({.bytes = 64}, {{memory.data(), memory.data()}, memory.data()});
    return std::count_if(made.ops.begin(), made.ops.end(), [](const auto& op) { return op.joins != 0; });
  };
  Plan plan = plan::packet_all_reduce(2);
  plan.reduce = plan::common_reduction(plan);
  const auto before = joins(plan);
  std::ptrdiff_t added = 0;
  for (plan::Rank& rank : plan.ranks) {
    for (plan::ThreadBlock& block : rank.blocks) {
      std::vector<plan::Operation> list;
      for (const plan::Operation& op : block.operations) {
        if (!list.empty()) {
          list.emplace_back().kind = plan::OpKind::kNop;
          added += &rank == plan.ranks.data() ? 1 : 0;
        }
        list.push_back(op);
      }
      block.operations = std::move(list);
    }
  }
  ASSERT_GT(added, 0);
  EXPECT_GT(joins(plan), before);
  EXPECT_GE(joins(plan), added);
  Twin twin(std::make_shared<const Plan>(plan), 1 << 12);
  EXPECT_EQ(twin.fault({216, DataType::kFloat32, ReduceOp::kSum, false, 3}, 1), "");
}

// Flags come round past 2^32 - 1, and none of them is zero.
TEST(PlansOnGpus, InvocationsMayPassTheLastFlag) {
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    Twin twin(plan, 1 << 12);
    twin.device.set_invocation(0xfffffffeu);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      ASSERT_EQ(twin.fault({100, DataType::kInt32, ReduceOp::kSum}, seed), "") << name;
    }
  }
}

struct Calls {
  explicit Calls(std::size_t ranks) : inputs(ranks, std::vector<std::byte>(1024)), outputs(inputs) {
    for (std::size_t r = 0; r < ranks; ++r) list.push_back({inputs[r].data(), outputs[r].data()});
  }
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<PlanCall> list;
};

// Every wait of every kind ends, the call is not counted as complete, and later ones leave at once.
TEST(PlansOnGpus, AMissingRankIsATimeout) {
  int workers = 0;
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    HostPlan device(plan);
    for (int r = 0; r < 2; ++r) device.worlds.host(r).timeout_ns = 100'000'000;
    Calls calls(2);
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, workers, 1);
    EXPECT_EQ(device.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << name;
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, workers);
    workers = 2 - workers;
  }
}

TEST(PlansOnGpus, AnotherCallIsAMismatch) {
  const auto plan = std::make_shared<const Plan>(plan::two_step_all_reduce(2));
  HostPlan device(plan);
  Calls calls(2);
  std::thread other([&] { device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, 0, 0, 78); });
  device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, 0, 1, 77);
  other.join();
  for (const int r : {0, 1}) {
    EXPECT_EQ(device.worlds.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kMismatch));
  }
}

std::string refusal_of(const std::shared_ptr<const Plan>& plan, const executor::DeviceLimits& limits) {
  std::string text;
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(plan->ranks.size()); ++rank) {
    try {
      executor::DevicePlan(plan, rank, limits);
      return "rank " + std::to_string(rank) + " takes it";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      if (rank > 0) {
        EXPECT_EQ(text, error.what()) << "ranks must refuse alike";
      }
      text = error.what();
    }
  }
  return text;
}

TEST(PlansOnGpus, WhatDoesNotFitIsRefusedWithTheNumber) {
  const auto blocks = std::make_shared<const Plan>(plan::two_step_all_reduce(2));
  EXPECT_NE(refusal_of(blocks, {2, 1UL << 20}).find("3 thread blocks"), std::string::npos);
  EXPECT_NE(refusal_of(blocks, {64, 5000}).find("a plan has at most 5000"), std::string::npos);
  const auto many = std::make_shared<const Plan>(plan::put_broadcast(9, 0));
  EXPECT_NE(refusal_of(many, {64, 1UL << 20}).find("9 ranks"), std::string::npos);
}

}  // namespace
}  // namespace tutti::cuda::test
