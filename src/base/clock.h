// Time as the library sees it: monotonic nanoseconds and deadlines.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace tutti {

inline std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A point of monotonic time after which a call fails. The clock is read only when someone asks: a call
// that completes while it spins never pays for it.
class Deadline {
 public:
  Deadline() = default;
  static Deadline after(std::chrono::milliseconds timeout) noexcept {
    Deadline d;
    d.timeout_ = timeout;
    return d;
  }
  static Deadline never() noexcept { return Deadline{}; }

  // Starts the clock on the first question.
  bool expired() noexcept { return remaining_ns() <= 0; }
  std::int64_t remaining_ns() noexcept {
    if (timeout_ == std::chrono::milliseconds::max()) return std::numeric_limits<std::int64_t>::max();
    const std::int64_t now = now_ns();
    if (end_ns_ == 0) {
      // Durations past ~146 years would overflow; they never expire anyway.
      constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 2 / 1'000'000;
      const std::int64_t ms = timeout_.count() < kMost ? timeout_.count() : kMost;
      end_ns_ = now + ms * 1'000'000;
    }
    return end_ns_ - now;
  }
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }

 private:
  std::chrono::milliseconds timeout_ = std::chrono::milliseconds::max();
  std::int64_t end_ns_ = 0;
};

}  // namespace tutti
