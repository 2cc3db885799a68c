// The thread that looks for failures which nobody asks for.
#include "communicator/failure_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <new>

namespace tutti {
namespace {

constexpr std::chrono::seconds kPatience{60};

// Gives `failure` at the second look, and tells when one look has followed that of another entry.
TEST(FailureWatch, LooksUntilItHasFoundAFailure) {
  FailureWatch watch;
  std::atomic<int> looks{0}, others{0};
  std::promise<void> later;
  testing::internal::CaptureStderr();
  const Logger logger(LogLevel::kError, 2);
  const std::uint64_t failing = watch.add(logger, false, [&]() -> std::optional<Error> {
    if (++looks < 2) return std::nullopt;
    return Error(ErrorKind::kTimeout, "rank 1 did not come");
  });
  const std::uint64_t aborted = watch.add(logger, /*end=*/true, [] { return Error(ErrorKind::kAborted, "aborted"); });
  const std::uint64_t healthy = watch.add(logger, /*end=*/true, [&]() -> std::optional<Error> {
    if (++others == 5) later.set_value();
    return std::nullopt;
  });
  EXPECT_EQ(later.get_future().wait_for(kPatience), std::future_status::ready);
  for (const std::uint64_t number : {failing, aborted, healthy}) watch.remove(number);
  EXPECT_EQ(looks.load(), 2);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, "tutti[rank 2] error: rank 1 did not come; what its calls have computed is undefined\n");
}

TEST(FailureWatch, SurvivesWantOfMemory) {
  FailureWatch watch;
  std::atomic<int> looks{0};
  std::promise<void> later;
  const std::uint64_t number = watch.add(Logger(LogLevel::kError, 0), /*end=*/true, [&]() -> std::optional<Error> {
    if (++looks == 3) later.set_value();
    throw std::bad_alloc();
  });
  EXPECT_EQ(later.get_future().wait_for(kPatience), std::future_status::ready);
  watch.remove(number);
}

// When remove() has returned, nothing looks any more: what was looked at may go.
TEST(FailureWatch, LooksNoLongerOnceRemoved) {
  FailureWatch watch;
  for (int i = 0; i < 50; ++i) {
    auto alive = std::make_unique<std::atomic<bool>>(true);
    const std::uint64_t number = watch.add(Logger(), false, [&here = *alive]() -> std::optional<Error> {
      EXPECT_TRUE(here.load());
      return std::nullopt;
    });
    watch.remove(number);
    *alive = false;
  }
}

TEST(FailureWatchDeath, EndsTheProcessIfItIsToldTo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        FailureWatch watch;
        watch.add(Logger(LogLevel::kError, 0), true, [] { return Error(ErrorKind::kPeerLost, "rank 1 died"); });
        std::promise<void>().get_future().wait_for(kPatience);
      },
      testing::KilledBySignal(SIGABRT), "rank 1 died; .*TUTTI_CUDA_WATCHDOG=end ends this process");
}

}  // namespace
}  // namespace tutti
