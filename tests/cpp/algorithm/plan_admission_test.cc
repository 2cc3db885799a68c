// Whether a plan can run where the ranks lie is found once, and told every time.
#include "algorithm/plan/plan_admission.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "executor/executor_plans.h"
#include "executor/host_plans.h"
#include "plan/plan_builder.h"

namespace tutti {
namespace {

using SharedPlan = std::shared_ptr<const plan::Plan>;

// Every rank alone on its host.
GroupPlace apart(int rank, int ranks) {
  std::vector<int> marks;
  for (int r = 0; r < ranks; ++r) marks.push_back(r);
  return {rank, RankMap(marks), nullptr};
}

Error error_of(PlanAdmissions& admissions, const SharedPlan& plan, const GroupPlace& world) {
  try {
    admissions.check(plan, world);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "");
}

// Peers say ranks in shared memory: any number.
TEST(GroupPlace, OnlyRanksOfThisHostHaveAPlaceHere) {
  const GroupPlace place{2, RankMap({0, 5, 5, 0, 5}), nullptr};
  EXPECT_EQ(place.place(), 1);
  EXPECT_EQ(place.here(), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(place.place_here(4), 2);
  for (const int other : {0, 3, -1, 5, 1'000'000'000}) EXPECT_EQ(place.place_here(other), -1) << other;
  EXPECT_EQ(place.of_ranks({Status::kPeerLost, 2}).peer, 4);
  EXPECT_EQ(place.of_ranks({Status::kTimeout, -1}).peer, -1);
}

TEST(PlanAdmissions, AreTriedOnceForARankAndItsHosts) {
  PlanAdmissions admissions;
  const auto plan = std::make_shared<const plan::Plan>(plan::hosts_ring_all_reduce({4, 1}));
  for (int group = 0; group < 3; ++group) admissions.check(plan, apart(0, 4));
  EXPECT_EQ(admissions.trials(), 1u);
  admissions.check(plan, apart(1, 4));
  EXPECT_EQ(admissions.trials(), 2u) << "another rank has other thread blocks";
  const GroupPlace pairs{0, RankMap({0, 0, 2, 2}), nullptr};
  admissions.check(plan, pairs);
  EXPECT_EQ(admissions.trials(), 3u) << "on other hosts other channels cross";
}

TEST(PlanAdmissions, AreRefusedEveryTime) {
  PlanAdmissions admissions;
  const auto plan = std::make_shared<const plan::Plan>(plan::two_step_all_reduce(2));
  const Error first = error_of(admissions, plan, apart(0, 2));
  EXPECT_EQ(first.kind(), ErrorKind::kUnsupported);
  EXPECT_NE(std::string(first.what()).find("only port channels reach"), std::string::npos) << first.what();
  const Error second = error_of(admissions, plan, apart(0, 2));
  EXPECT_EQ(second.kind(), first.kind());
  EXPECT_STREQ(second.what(), first.what());
  EXPECT_EQ(admissions.trials(), 1u);
}

// A plan that takes the place of another in memory has nothing of it.
TEST(PlanAdmissions, EndWithTheirPlan) {
  PlanAdmissions admissions;
  for (int i = 0; i < 8; ++i) {
    const bool right = i % 2 == 0;
    const auto plan =
        std::make_shared<const plan::Plan>(right ? plan::hosts_ring_all_reduce({2, 1}) : plan::two_step_all_reduce(2));
    EXPECT_EQ(std::string(error_of(admissions, plan, apart(0, 2)).what()).empty(), right) << i;
  }
  EXPECT_EQ(admissions.trials(), 8u);
}

}  // namespace
}  // namespace tutti
