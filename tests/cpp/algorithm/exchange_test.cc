// The pipeline of staged algorithms, of which one rank runs while the others stand still where the test has put them.
#include "algorithm/shm/exchange.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "channel/host_channels.h"

namespace tutti {
namespace {

constexpr std::size_t kChunk = 1024;
constexpr std::uint64_t kRounds = 20, kEarlierSteps = 7;

// Rank 0 fills until it may not, and the deadline passes. How many rounds rank `late` has drained, the others all.
class Standstill {
 public:
  Standstill(int late, std::uint64_t drained) : channels_(test::make_host_channels(3)), context_(call_) {
    for (int r = 0; r < 3; ++r) {
      HostChannel& host = *channels_[static_cast<std::size_t>(r)];
      host.advance_steps(kEarlierSteps);
      if (r > 0) host.publish(StepLane::kDrained, kEarlierSteps + (r == late ? drained : kRounds));
    }
    call_.deadline = Deadline::after(std::chrono::milliseconds(5));
    context_.size = 3;
    context_.host = channels_[0].get();
  }

  Outcome fill(std::uint64_t& filled) {
    return exchange(
        context_, kChunk, kRounds, Side::root(0), Side::others(0),
        [&](std::uint64_t round, std::byte*) noexcept {
          EXPECT_EQ(round, filled);
          ++filled;
        },
        [](std::uint64_t, const auto&) noexcept { ADD_FAILURE() << "rank 0 drains nothing"; });
  }
  std::uint64_t depth() const { return channels_[0]->stage_bytes() / kChunk; }

 private:
  std::vector<std::unique_ptr<HostChannel>> channels_;
  CallState call_;
  CallContext context_;
};

// Neither without a look nor a round early, whoever of the drainers is behind.
TEST(Exchange, APlaceIsFilledAgainOnlyWhenAllHaveDrainedIt) {
  for (const int late : {1, 2}) {
    for (const std::uint64_t drained : {0, 1, 5}) {
      Standstill call(late, drained);
      ASSERT_LT(call.depth() + drained, kRounds);
      std::uint64_t filled = 0;
      const Outcome outcome = call.fill(filled);
      EXPECT_EQ(outcome.status, Status::kTimeout);
      EXPECT_EQ(outcome.peer, late);
      EXPECT_EQ(filled, call.depth() + drained) << "rank " << late << " has drained " << drained;
    }
  }
}

TEST(Exchange, WhoHasDrainedAllHoldsNobodyUp) {
  Standstill call(1, kRounds);
  std::uint64_t filled = 0;
  EXPECT_TRUE(call.fill(filled).ok());
  EXPECT_EQ(filled, kRounds);
}

}  // namespace
}  // namespace tutti
