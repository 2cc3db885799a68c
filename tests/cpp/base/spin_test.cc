// How long a thread polls: by the clock, however long a poll takes.
#include "base/spin.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

constexpr std::int64_t kMostNs = 1'000'000;

TEST(Spin, LastsItsTimeAndEnds) {
  Spin spin(kMostNs);
  const std::int64_t start = now_ns();
  while (spin.goes_on()) spin.pause();
  EXPECT_GE(now_ns() - start, kMostNs);
  EXPECT_FALSE(spin.goes_on() && spin.goes_on() && spin.goes_on() && spin.goes_on() && spin.goes_on() &&
               spin.goes_on() && spin.goes_on() && spin.goes_on())
      << "at the next look at the clock at the latest";
}

TEST(Spin, BeginsAnewWhenThereWasSomething) {
  Spin spin(kMostNs);
  while (spin.goes_on()) spin.pause();
  spin.restart();
  const std::int64_t start = now_ns();
  while (spin.goes_on()) spin.pause();
  EXPECT_GE(now_ns() - start, kMostNs);
}

TEST(Spin, NoTimeIsNoPoll) { EXPECT_FALSE(Spin(0).goes_on()); }

}  // namespace
}  // namespace tutti
