// The trial must find what is wrong with a plan.
#include "executor/cpu/trial.h"

#include <gtest/gtest.h>

#include "executor/executor_plans.h"
#include "plan/plan_builder.h"
#include "plan/structure.h"
#include "tutti/error.h"

namespace tutti::executor {
namespace {

using plan::kO;
using plan::local;
using plan::OpKind;
using plan::Plan;

TrialReport try_at(Plan plan, std::int64_t bytes = 1000) {
  plan.reduce = plan::common_reduction(plan);
  TrialRequest request;
  request.block_bytes = bytes;
  return try_plan(std::make_shared<const Plan>(std::move(plan)), request);
}

TEST(Trial, FindsAMissingContribution) {
  Plan plan = plan::two_step_all_reduce(3);
  for (plan::Operation& op : plan.ranks[2].blocks[1].operations) {
    if (op.kind == OpKind::kReduce) op.sources.pop_back();
  }
  const std::string fault = try_at(plan).fault;
  EXPECT_NE(fault.find("element"), std::string::npos) << fault;
}

TEST(Trial, FindsAContributionThatCountsTwice) {
  Plan plan = plan::two_step_all_reduce(3);
  for (plan::Operation& op : plan.ranks[1].blocks[1].operations) {
    if (op.kind == OpKind::kReduce) op.sources.push_back(op.sources.back());
  }
  EXPECT_NE(try_at(plan).fault, "");
}

TEST(Trial, FindsBlocksThatAreSwapped) {
  plan::PlanBuilder builder(plan::PlanCollective::kAllGather, 2, 1, 2, 0);
  for (int r = 0; r < 2; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, 2, 0);
    block.copy(local(plan::kI, 0), local(kO, 1 - r)).put(1 - r, local(plan::kI, 0), kO, 1 - r).nop();
    meet_all(block, r, 2, 0);
  }
  EXPECT_NE(try_at(builder.plan).fault, "");
}

TEST(Trial, SaysWhoWaits) {
  Plan plan = plan::ring_all_reduce(3);
  plan.ranks[1].blocks[0].operations.erase(plan.ranks[1].blocks[0].operations.begin());
  const std::string fault = try_at(plan).fault;
  EXPECT_EQ(fault.rfind("it cannot go on: rank ", 0), 0U) << fault;
}

TEST(Trial, RefusesWhatThePlanDoesNotServe) {
  const auto shared = std::make_shared<const Plan>([] {
    Plan plan = plan::two_step_all_reduce(2);
    plan.reduce = plan::common_reduction(plan);
    return plan;
  }());
  TrialRequest request;
  request.block_bytes = 8;
  request.op = ReduceOp::kMax;
  EXPECT_THROW(try_plan(shared, request), Error);
  request.op = ReduceOp::kAvg;
  EXPECT_EQ(try_plan(shared, request).fault, "");
  request.dtype = DataType::kInt32;
  EXPECT_EQ(try_plan(shared, request).fault, "");
  request.dtype = DataType::kBool;
  EXPECT_THROW(try_plan(shared, request), Error);
  request.dtype = DataType::kInt32;
  request.op = ReduceOp::kSum;
  request.block_bytes = 7;
  EXPECT_THROW(try_plan(shared, request), Error);
}

}  // namespace
}  // namespace tutti::executor
