// Whole plans: world sizes, message sizes, element types, schedules.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "executor/cpu/trial.h"
#include "executor/executor_plans.h"
#include "plan/plan_builder.h"
#include "plan/structure.h"
#include "plan/verifier/verifier.h"
#include "support/sanitized.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti::executor {
namespace {

using plan::Plan;

bool power_of_two(std::int32_t n) { return (n & (n - 1)) == 0; }

std::vector<plan::NamedPlan> plans_for(std::int32_t ranks) {
  std::vector<plan::NamedPlan> list = plan::plans_of_every_operation(ranks);
  if (ranks > 1 && power_of_two(ranks)) {
    Plan doubling = plan::doubling_all_reduce(ranks);
    doubling.reduce = plan::common_reduction(doubling);
    list.push_back({"doubling", std::make_shared<Plan>(std::move(doubling))});
  }
  return list;
}

TrialRequest request_of(std::int64_t bytes, DataType dtype = DataType::kInt32, ReduceOp op = ReduceOp::kSum) {
  TrialRequest request;
  request.block_bytes = bytes;
  request.dtype = dtype;
  request.op = op;
  request.rounds = 3;
  request.options.invocations = 0;
  return request;
}

// What these tests run must be right, or they would show nothing.
TEST(PlansOfTheseTests, AreProven) {
  for (const std::int32_t ranks : {1, 2, 3, 4}) {
    for (const auto& [name, plan] : plans_for(ranks)) {
      const plan::Verdict verdict = plan::verify_strictly(*plan);
      EXPECT_EQ(verdict.outcome, plan::Outcome::kProven) << name << " " << ranks << ": " << verdict.fault.message;
    }
  }
}

// The packet of chunk 1 says that chunk 0 has come, also in a message that ends before chunk 1.
TEST(ShortMessages, PacketsOrderWhatTheyOrderInLongOnes) {
  using plan::ChannelKind, plan::OpKind, plan::local, plan::kI, plan::kO, plan::kS;
  plan::PlanBuilder builder(plan::PlanCollective::kBroadcast, 2, 2, 2, 2);
  builder.plan.double_scratch = true;
  builder.plan.root = 1;
  const auto leaf = builder.at(0);
  const auto root = builder.at(1);
  root.wait(0, 0, OpKind::kRelaxedWait).nop().copy(local(kI, 0, 2), local(kO, 0, 2)).put(0, local(kI, 0), kS, 1).nop();
  root.move_memory(OpKind::kPutPackets, {local(kI, 1)}, {root.remote(ChannelKind::kMemory, 0, kS, 0)});
  leaf.signal(1, 0, OpKind::kRelaxedSignal).move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 1)}).nop();
  leaf.copy(local(kS, 1), local(kO, 0));
  builder.plan.ranks[1].blocks[0].operations.back().fence = true;
  builder.plan.ranks[0].blocks[0].operations[1].fence = true;
  const auto made = std::make_shared<const Plan>(builder.plan);
  const plan::Verdict verdict = plan::verify_strictly(*made);
  ASSERT_EQ(verdict.outcome, plan::Outcome::kProven) << verdict.fault.message;
  for (const std::int64_t bytes : {4, 16, 20, 32}) {
    EXPECT_EQ(try_plan(made, request_of(bytes)).fault, "") << bytes;
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      TrialRequest request = request_of(bytes);
      request.options.seed = seed;
      EXPECT_EQ(try_plan(made, request).fault, "") << bytes << " bytes, seed " << seed;
    }
  }
}

class Worlds : public testing::TestWithParam<std::int32_t> {};

TEST_P(Worlds, EverySize) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "has one thread";
  const std::int64_t chunk = 16 * GetParam();
  for (const auto& [name, plan] : plans_for(GetParam())) {
    for (const std::int64_t bytes :
         {std::int64_t{0}, std::int64_t{4}, std::int64_t{12}, std::int64_t{52}, chunk - 4, chunk, chunk + 4,
          std::int64_t{1020}, std::int64_t{4100}, std::int64_t{65536 + 4}}) {
      const TrialReport report = try_plan(plan, request_of(bytes));
      EXPECT_TRUE(report.checked);
      EXPECT_EQ(report.fault, "") << name << ", " << bytes << " bytes";
    }
  }
}

TEST_P(Worlds, LargeMessages) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "has one thread";
  for (const auto& [name, plan] : plans_for(GetParam())) {
    TrialRequest request = request_of((test::kSanitized ? 1 << 17 : 1 << 20) + 4);
    request.rounds = 1;
    EXPECT_EQ(try_plan(plan, request).fault, "") << name;
  }
}

TEST_P(Worlds, EveryElementType) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "has one thread";
  if (test::kSanitized && GetParam() > 3) GTEST_SKIP() << "too slow under a sanitizer";
  for (const auto& [name, plan] : plans_for(GetParam())) {
    for (int i = 0; i < kDataTypeCount; ++i) {
      const auto dtype = static_cast<DataType>(i);
      for (int k = 0; k < kReduceOpCount; ++k) {
        const auto op = static_cast<ReduceOp>(k);
        const TrialRequest request = request_of(static_cast<std::int64_t>(37 * size_of(dtype)), dtype, op);
        try {
          EXPECT_EQ(try_plan(plan, request).fault, "") << name << " " << to_string(dtype) << " " << to_string(op);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
          EXPECT_FALSE(op == ReduceOp::kSum && dtype == DataType::kFloat32) << name;
          EXPECT_NE(plan->collective, plan::PlanCollective::kAllGather) << name;
        }
      }
    }
  }
}

TEST_P(Worlds, RandomSchedules) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "has one thread";
  for (const auto& [name, plan] : plans_for(GetParam())) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      TrialRequest request = request_of(1020);
      request.options.seed = seed * 1000;
      EXPECT_EQ(try_plan(plan, request).fault, "") << name << ", seed " << *request.options.seed;
    }
  }
}

TEST_P(Worlds, ThreadPerRank) {
  for (const auto& [name, plan] : plans_for(GetParam())) {
    TrialRequest request = request_of(4100);
    request.options.thread_per_rank = true;
    request.options.invocations = 20;
    const TrialReport report = try_plan(plan, request);
    EXPECT_EQ(report.fault, "") << name;
    EXPECT_EQ(report.nanoseconds.size(), 20U) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Worlds, testing::Values(1, 2, 3, 4, 8));

TEST(ManyRanks, SixtyFourInOneThread) {
  if (test::kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  for (const auto& [name, plan] : plans_for(64)) {
    TrialRequest request = request_of(4100);
    request.rounds = 2;
    EXPECT_EQ(try_plan(plan, request).fault, "") << name;
  }
}

// A plan whose reductions are the caller's serves all of them.
TEST(AnyReduction, IsTheCallers) {
  Plan any = plan::two_step_all_reduce(4);
  for (plan::Rank& rank : any.ranks) {
    for (plan::Operation& op : rank.blocks[1].operations) op.reduce = plan::ReduceKind::kAny;
  }
  any.reduce = plan::common_reduction(any);
  const auto shared = std::make_shared<const Plan>(any);
  for (int k = 0; k < kReduceOpCount; ++k) {
    const auto op = static_cast<ReduceOp>(k);
    const DataType dtype = op == ReduceOp::kAvg || op == ReduceOp::kPremulSum ? DataType::kFloat16 : DataType::kInt16;
    EXPECT_EQ(try_plan(shared, request_of(1030, dtype, op)).fault, "") << to_string(op);
  }
}

// A loop that another loop of the same world follows at another size: counters and flags must go on.
TEST(Sizes, AlternateInOneWorld) {
  const auto shared = std::make_shared<const Plan>(plan::packet_two_step_all_reduce(3));
  LocalWorld world(shared, 4096, 4096);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t count = 1 + (round * 37) % 1024;
    std::vector<std::vector<std::int32_t>> inputs(3), outputs(3);
    LocalMessage message;
    message.dtype = DataType::kInt32;
    message.input_block_bytes = message.output_block_bytes = count * 4;
    for (int r = 0; r < 3; ++r) {
      for (std::int64_t i = 0; i < count; ++i) inputs[r].push_back(static_cast<std::int32_t>(i * 3 + r * 1000 + round));
      outputs[r].resize(static_cast<std::size_t>(count));
      message.inputs.push_back(reinterpret_cast<std::byte*>(inputs[r].data()));
      message.outputs.push_back(reinterpret_cast<std::byte*>(outputs[r].data()));
    }
    ASSERT_TRUE(world.run(message).outcome.ok());
    for (int r = 0; r < 3; ++r) {
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(outputs[r][static_cast<std::size_t>(i)], i * 9 + 3000 + 3 * round) << "round " << round;
      }
    }
  }
}

TEST(Sizes, LargerThanTheWorldIsRefused) {
  const auto shared = std::make_shared<const Plan>(plan::switch_all_reduce(2));
  LocalWorld world(shared, 64, 64);
  LocalMessage message;
  message.input_block_bytes = message.output_block_bytes = 128;
  EXPECT_THROW(world.run(message), Error);
}

}  // namespace
}  // namespace tutti::executor
