// Where a rank sleeps that waits for sockets and for ranks of its own host at once. What was awaited is there only
// when somebody has rung: the sleeps here end by that or not at all.
#include "channel/group_waker.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "channel/host_channels.h"

namespace tutti {
namespace {

constexpr std::int64_t kLongNs = 20'000'000'000;  // beyond every honest wake-up

// Two ranks of a host, and a third one elsewhere.
class GroupWakerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int rank : {0, 1}) {
      const auto at = static_cast<std::size_t>(rank);
      wakers_[at] = std::make_unique<GroupWaker>(channels_[at].get(), RankMap({0, 0, 2}), rank);
    }
  }

  // How long rank 0 sleeps when `act` happens after it has said that it sleeps.
  template <class Act>
  std::int64_t sleep_through(std::int64_t timeout_ns, const Act& act) {
    const std::int64_t start = now_ns();
    wakers_[0]->sleep({}, timeout_ns, [&] {
      act();
      return true;
    });
    return now_ns() - start;
  }

  const std::vector<std::unique_ptr<HostChannel>> channels_ = test::make_host_channels();
  std::unique_ptr<GroupWaker> wakers_[2];
};

TEST_F(GroupWakerTest, SleepsUntilItsTimeWhereNobodyRings) {
  for (int i = 0; i < 3; ++i) EXPECT_GE(sleep_through(30'000'000, [] {}), 30'000'000) << "it looked up in between";
}

TEST_F(GroupWakerTest, ARankOfTheHostWakes) {
  for (int i = 0; i < 50; ++i) EXPECT_LT(sleep_through(kLongNs, [&] { wakers_[1]->ring(0); }), kLongNs);
  EXPECT_GE(sleep_through(30'000'000, [&] { wakers_[0]->ring(1); }), 30'000'000) << "nobody rang here";
}

TEST_F(GroupWakerTest, ManyRingsWakeOnce) {
  EXPECT_LT(sleep_through(kLongNs,
                          [&] {
                            for (int i = 0; i < 100; ++i) wakers_[1]->ring(0);
                          }),
            kLongNs);
  EXPECT_GE(sleep_through(30'000'000, [] {}), 30'000'000);
}

TEST_F(GroupWakerTest, ANudgeWakes) {
  EXPECT_LT(sleep_through(kLongNs, [&] { wakers_[0]->nudge(); }), kLongNs);
}

TEST_F(GroupWakerTest, AnAbortWakes) {
  EXPECT_LT(sleep_through(kLongNs, [&] { channels_[0]->abort(); }), kLongNs);
}

TEST_F(GroupWakerTest, APeerThatLeavesWakes) {
  EXPECT_LT(sleep_through(kLongNs, [&] { channels_[1]->leave(); }), kLongNs);
}

TEST_F(GroupWakerTest, APeerThatFailsWakes) {
  EXPECT_LT(sleep_through(kLongNs, [&] { channels_[1]->report({Status::kInternal, 1}); }), kLongNs);
}

}  // namespace
}  // namespace tutti
