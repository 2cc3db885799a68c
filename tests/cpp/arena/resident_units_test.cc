// The account of resident and cached memory.
#include "device/cpu/resident_units.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

constexpr std::size_t kUnit = ResidentUnits::kUnitBytes;
using Span = std::pair<std::size_t, std::size_t>;

TEST(ResidentUnits, CountsFreeBytesOfTouchedUnits) {
  ResidentUnits units;
  units.cover(4 * kUnit);
  EXPECT_EQ(units.cached_bytes(), 0u);
  units.use(kUnit / 2, kUnit);  // half of two units
  EXPECT_EQ(units.cached_bytes(), kUnit);
  units.use(0, kUnit / 2);
  EXPECT_EQ(units.cached_bytes(), kUnit / 2);
  units.release(0, kUnit / 2);
  EXPECT_EQ(units.cached_bytes(), kUnit);
  EXPECT_FALSE(units.oldest_free(8 * kUnit)) << "both units are partly in use";
  units.release(kUnit / 2, kUnit);
  EXPECT_EQ(units.cached_bytes(), 2 * kUnit);
  EXPECT_EQ(units.oldest_free(8 * kUnit), Span(0, 2 * kUnit));
}

TEST(ResidentUnits, GivesTheOldestBackFirstAndNoMoreThanAsked) {
  ResidentUnits units;
  units.cover(10 * kUnit);
  units.use(0, 10 * kUnit);
  units.release(4 * kUnit, 3 * kUnit);
  units.release(0, 2 * kUnit);
  EXPECT_EQ(units.oldest_free(2 * kUnit), Span(4 * kUnit, 2 * kUnit));
  EXPECT_EQ(units.oldest_free(1), Span(4 * kUnit, kUnit)) << "at least one unit";
  units.given_back(4 * kUnit, 2 * kUnit);
  EXPECT_EQ(units.cached_bytes(), 3 * kUnit);
  EXPECT_EQ(units.oldest_free(8 * kUnit), Span(6 * kUnit, kUnit));
  units.use(6 * kUnit, kUnit);
  EXPECT_EQ(units.oldest_free(8 * kUnit), Span(0, 2 * kUnit)) << "a unit in use again is not free";
  units.use(5 * kUnit, kUnit);
  EXPECT_EQ(units.cached_bytes(), 2 * kUnit);
}

TEST(ResidentUnits, ARestartForgetsAndIgnoresWhatLiesBelow) {
  ResidentUnits units;
  units.cover(4 * kUnit);
  units.use(0, 2 * kUnit);
  units.release(0, kUnit);
  units.restart_at(2 * kUnit);
  EXPECT_EQ(units.cached_bytes(), 0u);
  EXPECT_FALSE(units.oldest_free(kUnit));
  units.release(kUnit, kUnit);
  EXPECT_EQ(units.cached_bytes(), 0u);
  units.use(2 * kUnit, kUnit);
  units.release(2 * kUnit, kUnit);
  EXPECT_EQ(units.oldest_free(kUnit), Span(2 * kUnit, kUnit));
}

}  // namespace
}  // namespace tutti
