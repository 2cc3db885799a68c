#include "channel/rescued_waits.h"

#include <atomic>

namespace tutti {
namespace {

std::atomic<std::uint64_t> rescued_waits{0};  // relaxed: a count, nothing else depends on it

}  // namespace

void count_rescued_wait() noexcept { rescued_waits.fetch_add(1, std::memory_order_relaxed); }

std::uint64_t rescued_waits_of_process() noexcept { return rescued_waits.load(std::memory_order_relaxed); }

}  // namespace tutti
