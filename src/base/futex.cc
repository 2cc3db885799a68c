// Sleeping on shared words: Linux futexes and expedited membarriers; os_sync_wait_on_address on macOS.
//
// Considerations. No FUTEX_PRIVATE_FLAG: the kernel must key the word by the page behind it, since each process maps
// it at an address of its own. The asymmetric barrier is the GLOBAL_EXPEDITED one: the private one covers only
// threads of the calling process, and plain GLOBAL waits for a grace period (milliseconds).
#include "base/futex.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#elif defined(__APPLE__)
#include <os/os_sync_wait_on_address.h>
#endif

namespace tutti {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free,
              "a futex word is a plain 32-bit word");

#if defined(__linux__)

void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns) noexcept {
  if (timeout_ns <= 0) return;
  constexpr std::int64_t kNsPerSecond = 1'000'000'000;
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_ns / kNsPerSecond);
  timeout.tv_nsec = static_cast<long>(timeout_ns % kNsPerSecond);
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>* word) noexcept {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool register_light_barrier() noexcept {
  static const bool registered = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return registered;
}

bool heavy_barrier() noexcept { return ::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }

#elif defined(__APPLE__)

void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns) noexcept {
  if (timeout_ns <= 0) return;
  os_sync_wait_on_address_with_timeout(const_cast<std::atomic<std::uint32_t>*>(word), expected, sizeof(*word),
                                       OS_SYNC_WAIT_ON_ADDRESS_SHARED, OS_CLOCK_MACH_ABSOLUTE_TIME,
                                       static_cast<std::uint64_t>(timeout_ns));
}

void futex_wake_all(const std::atomic<std::uint32_t>* word) noexcept {
  os_sync_wake_by_address_all(const_cast<std::atomic<std::uint32_t>*>(word), sizeof(*word),
                              OS_SYNC_WAKE_BY_ADDRESS_SHARED);
}

// No such barrier on macOS: publishers keep their fence.
bool register_light_barrier() noexcept { return false; }
bool heavy_barrier() noexcept { return false; }

#else
#error "Tutti needs futexes (Linux) or os_sync_wait_on_address (macOS)"
#endif

}  // namespace tutti
