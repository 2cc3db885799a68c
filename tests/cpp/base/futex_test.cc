// Sleeping and waking on a shared word, inside a process and between two.
#include "base/futex.h"

#include <gtest/gtest.h>

#include <new>
#include <thread>

#include "base/mapping.h"
#include "support/child_process.h"

namespace tutti {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(Futex, ReturnsAtOnceWhenTheWordDiffersOrNoTimeIsLeft) {
  const std::atomic<std::uint32_t> word{1};
  futex_wait(&word, 0, 3600 * kSecond);  // the test's watchdog catches a sleep
  futex_wait(&word, 1, 0);
  futex_wait(&word, 1, -5);
}

TEST(Futex, ATimeoutEndsTheSleep) {
  const std::atomic<std::uint32_t> word{1};
  futex_wait(&word, 1, 1000);
}

TEST(Futex, AWakeEndsTheSleepOfEveryThread) {
  std::atomic<std::uint32_t> word{0};
  const auto sleep_until_set = [&word] {
    // acquire: pairs with the release of the waker below
    while (word.load(std::memory_order_acquire) == 0) futex_wait(&word, 0, 3600 * kSecond);
  };
  std::thread a(sleep_until_set);
  std::thread b(sleep_until_set);
  word.store(1, std::memory_order_release);
  futex_wake_all(&word);
  a.join();
  b.join();
}

TEST(Futex, WakesASleeperInAnotherProcessAtAnotherAddress) {
  const UniqueFd fd = create_memfd("test", 4096);
  const Mapping mapping = Mapping::shared(fd.get(), 4096);
  auto* const word = new (mapping.data()) std::atomic<std::uint32_t>(0);
  test::ChildProcess child([&fd] {
    const Mapping own = Mapping::shared(fd.get(), 4096);
    auto* const seen = reinterpret_cast<std::atomic<std::uint32_t>*>(own.data());
    // acquire: pairs with the release of the waker below
    while (seen->load(std::memory_order_acquire) == 0) futex_wait(seen, 0, 3600 * kSecond);
    return static_cast<int>(seen->load(std::memory_order_relaxed));
  });
  word->store(7, std::memory_order_release);
  futex_wake_all(word);
  EXPECT_EQ(child.join(), 7);
}

TEST(LightBarrier, WorksOnceRegistered) {
  if (!register_light_barrier()) GTEST_SKIP() << "no expedited membarrier here";
  EXPECT_TRUE(register_light_barrier());
  EXPECT_TRUE(heavy_barrier());
}

}  // namespace
}  // namespace tutti
