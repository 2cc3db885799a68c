// How long and how often the endpoint tries. Thread rule: constants and free functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace tutti::tcp {

inline constexpr std::int64_t kFirstRestMs = 20;  // doubles with every broken dial
inline constexpr std::int64_t kLongestRestMs = 1'000;
inline constexpr std::int64_t kYieldMs = 2'000;          // for the lower rank's own dial to arrive, before asking again
inline constexpr std::int64_t kUnreachableRestMs = 100;  // while there is no way to the peer's host
inline constexpr int kMostFailures = 10;                 // broken dials in a row before the peer counts as lost
inline constexpr int kMostExhausted = 5;                 // dials for which the peer had no descriptor, over 0.6 s
// For which this rank had none: later than its peers hear so, for their sake.
inline constexpr int kMostExhaustedHere = 6;

// Under way at once, if that is more than a quarter of what descriptors there may be: the others wait their turn.
inline constexpr std::size_t kLeastDials = 8;

inline constexpr const char* kConnectionGone =
    "died or cannot be reached any more: it has had a connection to this rank, and that is gone";

inline constexpr const char* kStarvedThere = "cannot be reached: it has no memory left for a connection";

inline std::int64_t now_in_ms() noexcept { return now_ns() / 1'000'000; }

}  // namespace tutti::tcp
