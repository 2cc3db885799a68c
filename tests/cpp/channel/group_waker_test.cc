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
#include "bootstrap/host_group.h"
#include "bootstrap/memory_store.h"

namespace tutti {
namespace {

constexpr std::int64_t kLongNs = 20'000'000'000;  // beyond every honest wake-up

// Two ranks of a host, and a third one elsewhere.
class GroupWakerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::thread other([this] { make(1); });
    make(0);
    other.join();
    for (const int rank : {0, 1}) {
      ASSERT_NE(channels_[rank], nullptr);
      wakers_[rank] = std::make_unique<GroupWaker>(channels_[rank].get(), std::vector<int>{0, 1}, rank, 3);
    }
  }

  void make(int rank) {
    const SegmentLayout layout(
        SegmentShape{.ranks = 2, .slot_bytes = 4096, .stage_bytes = 4096, .ring_capacity = 4096});
    HostGroupRequest request;
    request.id = "wakers";
    request.rank = rank;
    request.size = 2;
    request.segment_bytes = [&](int) { return layout.total_bytes(); };
    request.timeout = std::chrono::seconds(20);
    auto channel = std::make_unique<HostChannel>(form_host_group(store_, request), layout, WaitPolicy{});
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    if (channel->join(deadline).ok()) channels_[rank] = std::move(channel);
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

  MemoryStore store_;
  std::unique_ptr<HostChannel> channels_[2];
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
