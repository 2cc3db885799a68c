#include "support/lost_wakeups.h"

#include <gtest/gtest.h>

#include "channel/rescued_waits.h"

namespace tutti {

// Not there in programs that do not link the library.
[[gnu::weak]] std::uint64_t rescued_waits_of_process() noexcept;

namespace test {
namespace {

bool on_purpose = false;

class AsksForLostWakeups final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    before_ = lost_wakeups();
    on_purpose = false;
  }
  void OnTestEnd(const ::testing::TestInfo& /*test*/) override {
    if (on_purpose) return;
    EXPECT_EQ(lost_wakeups(), before_) << "a wait was ended by its time slice alone";
  }

  std::uint64_t before_ = 0;
};

// Before main(), which is GoogleTest's.
[[maybe_unused]] const bool asks = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new AsksForLostWakeups);
  return true;
}();

}  // namespace

std::uint64_t lost_wakeups() noexcept { return rescued_waits_of_process != nullptr ? rescued_waits_of_process() : 0; }

void may_lose_wakeups() noexcept { on_purpose = true; }

}  // namespace test
}  // namespace tutti
