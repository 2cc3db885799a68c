// How a thread waits before it sleeps.
#pragma once

#include <cstdint>

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

// How long to spin, then to yield, before sleeping on a futex. It follows how many ranks share a core: a rank
// that spins on a core that its peer needs delays the very thing it waits for.
struct WaitPolicy {
  std::uint32_t spins = 4000;  // polls with cpu_relax between them
  std::uint32_t yields = 0;    // then polls with sched_yield between them
  bool crowded = false;        // more ranks than cores
};

}  // namespace tutti
