// Where a rank sleeps that waits for sockets and for ranks of its own host at once. What was awaited is there only
// when somebody has rung: the sleeps here end by that or not at all.
#include "channel/group_waker.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "channel/host_channels.h"
#include "channel/sleepers.h"

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
    bool acted = false;  // of a sleep, not of each of its parts
    test::sleep_for(*wakers_[0], {}, timeout_ns, [&] {
      if (!std::exchange(acted, true)) act();
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

// What was awaited is there after a whole sleep, here and there, and nobody has woken: then that was lost, unless
// somebody is about to.
TEST_F(GroupWakerTest, TellsOfALostWakeUp) {
  constexpr std::int64_t kShortNs = 20'000'000;
  for (const auto& map : {RankMap({0, 0}), RankMap({0, 0, 2})}) {
    SCOPED_TRACE(map.ranks());
    GroupWaker sleeper(channels_[0].get(), map, 0), other(channels_[1].get(), map, 1);
    const auto lost = [&](const std::function<void()>& act, bool missed = true) {
      bool acted = false;
      return test::sleep_for(
          sleeper, {}, kShortNs,
          [&] {
            if (!std::exchange(acted, true)) act();
            return true;
          },
          missed);
    };
    EXPECT_TRUE(lost([] {}));
    EXPECT_FALSE(lost([] {}, false));
    EXPECT_FALSE(lost([&] { other.ring(0); }));
    EXPECT_FALSE(lost([&] { sleeper.nudge(); }));
    for (const WaitLane lane : {WaitLane::kCollective, WaitLane::kMessage}) {
      EXPECT_FALSE(lost([&] { channels_[1]->begin_publishing(lane); }));
      channels_[1]->end_publishing(lane);
    }
    EXPECT_TRUE(lost([] {}));
    if (!channels_[0]->publishers_fence()) {
      constexpr std::int64_t kFirstNs = 1'000'000;
      EXPECT_FALSE(test::sleep_for(
          sleeper, {}, kFirstNs, [] { return true; }, true))
          << "the system may miss that";
    }
  }
}

// Who has brought it wakes when the sleep is over: at the latest just before the sleeper looks.
TEST_F(GroupWakerTest, AWakeUpBehindTheSleepIsNotLost) {
  class Late final : public PortWaker::Sleeper {
   public:
    explicit Late(std::function<void()> wake) : wake_(std::move(wake)) {}
    bool may_sleep() noexcept override { return true; }
    bool has_missed() noexcept override {
      looked_ = true;
      wake_();
      return true;
    }
    bool looked() const { return looked_; }

   private:
    const std::function<void()> wake_;
    bool looked_ = false;
  };
  for (const auto& map : {RankMap({0, 0}), RankMap({0, 0, 2})}) {
    SCOPED_TRACE(map.ranks());
    GroupWaker sleeper(channels_[0].get(), map, 0), other(channels_[1].get(), map, 1);
    Late ring([&] { other.ring(0); }), nudge([&] { sleeper.nudge(); });
    for (Late* late : {&ring, &nudge}) {
      EXPECT_FALSE(sleeper.sleep({}, 20'000'000, *late));
      EXPECT_TRUE(late->looked()) << "it did not sleep for the whole time";
    }
  }
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
