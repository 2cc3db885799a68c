// How a thread waits before it sleeps.
#pragma once

#include <sched.h>

#include <cstdint>

#include "base/clock.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace tutti {

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// How long a thread polls before it sleeps, by the clock, which is read once in so many polls.
class Spin {
 public:
  explicit Spin(std::int64_t most_ns) noexcept : most_ns_(most_ns) {}

  // Asked after each poll in vain: whether to poll on.
  bool goes_on() noexcept {
    if (most_ns_ <= 0) return false;
    if (++polls_ % kPollsALook != 0) return true;
    const std::int64_t now = now_ns();
    if (began_ns_ == 0) began_ns_ = now;
    spent_ns_ = now - began_ns_;
    return spent_ns_ < most_ns_;
  }
  // Between two polls. Whoever has polled for a while lets others have the core: on one of its own it loses nothing.
  void pause() const noexcept {
    if (spent_ns_ < kHotNs) {
      cpu_relax();
    } else {
      sched_yield();
    }
  }
  // There was something.
  void restart() noexcept { began_ns_ = spent_ns_ = 0; }

 private:
  static constexpr std::uint32_t kPollsALook = 8;
  static constexpr std::int64_t kHotNs = 5'000;

  std::int64_t most_ns_;
  std::int64_t began_ns_ = 0;
  std::int64_t spent_ns_ = 0;
  std::uint32_t polls_ = 0;
};

// How long to spin, then how often to yield, before sleeping on a futex. It follows how many ranks share a core: a rank
// that spins on a core that its peer needs delays the very thing it waits for.
struct WaitPolicy {
  std::int64_t spin_ns = 100'000;  // Spin
  std::uint32_t yields = 0;        // then polls with sched_yield between them
  bool crowded = false;            // more ranks than cores
  bool reads_memory = false;       // peers' memory may be read by the kernel
};

}  // namespace tutti
