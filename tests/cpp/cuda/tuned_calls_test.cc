// What a tuning table makes of calls on GPUs; nothing here runs.
#include "communicator/cuda/tuned_calls.h"

#include <gtest/gtest.h>

#include "algorithm/user/algorithm_source.h"
#include "executor/executor_plans.h"
#include "plan/writer.h"

namespace tutti::cuda {
namespace {

constexpr int kSize = 2;

CallShape sum_of(std::size_t bytes) {
  CallShape shape;
  shape.collective = Collective::kAllReduce;
  shape.dtype = DataType::kFloat32;
  shape.bytes = bytes;
  shape.ranks = kSize;
  return shape;
}

CudaShape on_gpu(const CallShape& shape, bool ll128 = true) {
  return {shape.collective, shape.dtype, kSize, shape.bytes, 64, ll128};
}

TuningRule rule(std::size_t bytes, std::vector<TuningRule::Measured> measured) {
  TuningRule made;
  made.collective = Collective::kAllReduce;
  made.bytes = bytes;
  made.max_bytes = 2 * bytes;
  made.measured = std::move(measured);
  return made;
}

// A table of plans with one ring for two ranks.
struct WithRing {
  PlanTable table;
  const TablePlan* ring = nullptr;

  WithRing() {
    plan::Plan plan = plan::ring_all_reduce(kSize);
    plan.name = "ring";
    const UserAlgorithmPtr algorithm = plan_algorithm(plan::write_plan(plan), "ring.json");
    PlanOffer offer({algorithm}, nullptr, {0, kSize, [](int) { return PlanRoom{64, ""}; }, {}}, false);
    offer.try_new();
    offer.agree({offer.text(), offer.text()});
    table.add(offer.take_new());
    ring = table.find(algorithm->identity());
  }
};

TEST(TunedCalls, WhatWasMeasuredFirstRuns) {
  const WithRing plans;
  const TunedCalls calls({rule(1024, {{"ll_two_shot", 900}, {"ll_one_shot", 1000}}),
                          rule(8192, {{"plan:ring", 500}, {"ll_one_shot", 700}})},
                         {plans.ring});
  const auto step_for = [&](std::size_t bytes) { return calls.step_for(sum_of(bytes), on_gpu(sum_of(bytes))); };
  ASSERT_NE(step_for(512), nullptr);
  EXPECT_EQ(step_for(512)->plan, nullptr);
  EXPECT_TRUE(step_for(512)->kernel.protocol == Protocol::kLL && step_for(512)->kernel.two_shot);
  ASSERT_NE(step_for(4096), nullptr);
  EXPECT_EQ(step_for(4096)->plan, plans.ring);
  EXPECT_EQ(step_for(100'000), nullptr) << "past twice the largest size";
  EXPECT_EQ(TunedCalls().step_for(sum_of(512), on_gpu(sum_of(512))), nullptr);
  CallShape other = sum_of(512);
  other.collective = Collective::kAllGather;
  EXPECT_EQ(calls.step_for(other, on_gpu(other)), nullptr);
  other = sum_of(512);
  other.uneven = true;
  EXPECT_EQ(calls.step_for(other, on_gpu(other)), nullptr);
}

TEST(TunedCalls, WhatCannotRunIsPassedOver) {
  const WithRing plans;
  const TunedCalls calls({rule(4096, {{"ll128_one_shot", 5}, {"plan:ring", 6}, {"bulk_one_shot", 7}})}, {plans.ring});
  CallShape shape = sum_of(4096);
  EXPECT_EQ(calls.step_for(shape, on_gpu(shape))->kernel.protocol, Protocol::kLL128);
  EXPECT_EQ(calls.step_for(shape, on_gpu(shape, false))->plan, plans.ring);
  shape.op = ReduceOp::kPremulSum;  // of which no plan on GPUs is capable
  const TunedStep* const step = calls.step_for(shape, on_gpu(shape, false));
  EXPECT_TRUE(step->plan == nullptr && step->kernel.protocol == Protocol::kBulk);
  // Names that stand for nothing here: a plan that is not at hand, copy engines, another version's kernel.
  const TunedCalls strange(
      {rule(4096, {{"plan:gone", 1}, {"copy_engine", 2}, {"ll_three_shot", 3}, {"ll_one_shot", 4}})}, {plans.ring});
  EXPECT_EQ(strange.step_for(sum_of(4096), on_gpu(sum_of(4096)))->kernel.protocol, Protocol::kLL);
}

TEST(TunedCalls, SaysWhatWasMeasured) {
  const WithRing plans;
  const TunedCalls calls(
      {rule(4096, {{"ll_two_shot", 9000}, {"plan:ring", 8000}, {"ll128_one_shot", 12'000}, {"plan:gone", 20'000}})},
      {plans.ring});
  const CallShape shape = sum_of(4096);
  const std::string text = calls.explain(shape, on_gpu(shape, false), *calls.step_for(shape, on_gpu(shape, false)));
  EXPECT_EQ(text.find("-> ll_two_shot@"), 0u) << text;
  for (const char* line :
       {": Tutti's own kernels, by the tuning table; 9 us\n",
        "   plan:ring: would work; measured, but not faster by enough; 8 us\n",
        "   ll128_one_shot: not here: the links do not pass the probe for lines of 128 bytes; 12 us\n",
        "   plan:gone: measured, but chosen nowhere; 20 us\n",
        "times: the tuning table's, of 4096 bytes, f32, private\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "is not in\n" << text;
  }
  const TunedCalls by_plan({rule(4096, {{"plan:ring", 8000}})}, {plans.ring});
  EXPECT_EQ(by_plan.explain(shape, on_gpu(shape), *by_plan.step_for(shape, on_gpu(shape))),
            "-> plan:ring: runs the plan of ring.json, by the tuning table; 8 us\n"
            "times: the tuning table's, of 4096 bytes, f32, private\n");
}

}  // namespace
}  // namespace tutti::cuda
