// Clocks against the sets of events that they stand for.
#include "plan/verifier/clock.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace tutti::plan {
namespace {

constexpr std::uint32_t kComponents = 150;  // some pages, the last one not full
constexpr std::uint32_t kTicks = 12;

using Events = std::set<std::pair<std::uint32_t, std::uint32_t>>;

void expect_same(const ClockVector& clock, const Events& events, int round) {
  for (std::uint32_t component = 0; component < kComponents; ++component) {
    for (std::uint32_t tick = 1; tick <= kTicks; ++tick) {
      ASSERT_EQ(clock.covers(component, tick), events.contains({component, tick}))
          << "component " << component << ", tick " << tick << ", round " << round;
    }
  }
}

TEST(Clock, KnowsExactlyWhatItWasTold) {
  std::mt19937 random(7);
  const auto below = [&random](std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); };
  Budget budget({});
  std::vector<ClockVector> clocks(6);
  std::vector<Events> model(clocks.size());
  for (int round = 0; round < 3000; ++round) {
    const std::size_t at = below(static_cast<std::uint32_t>(clocks.size()));
    const std::size_t other = below(static_cast<std::uint32_t>(clocks.size()));
    // Few components, so that spans meet; now and then one of another page.
    const std::uint32_t component = below(8) == 0 ? below(kComponents) : below(3) * 70;
    const std::uint32_t tick = 1 + below(kTicks);
    switch (below(8)) {
      case 0:
        clocks[at].set(component, tick, budget);
        for (std::uint32_t t = 1; t <= tick; ++t) model[at].emplace(component, t);
        break;
      case 1:
        clocks[at].join(clocks[other]);
        model[at].insert(model[other].begin(), model[other].end());
        break;
      case 2:  // shares its pages from now on
        clocks[at] = clocks[other];
        model[at] = model[other];
        break;
      case 3:
        if (below(4) == 0) {
          clocks[at] = {};
          model[at].clear();
        }
        break;
      default:
        clocks[at].add(component, tick, budget);
        model[at].emplace(component, tick);
    }
    for (std::size_t i = 0; i < clocks.size() && round % 50 == 0; ++i) expect_same(clocks[i], model[i], round);
    expect_same(clocks[at], model[at], round);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::plan
