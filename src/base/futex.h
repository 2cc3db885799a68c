// Sleeping on a word of shared memory, across processes.
//
// Never FUTEX_PRIVATE_FLAG: the word lies in a segment that several processes map.
#pragma once

#include <atomic>
#include <cstdint>

namespace tutti {

// Sleeps while `*word == expected`, at most `timeout_ns`. Returns on a wake, a timeout, a signal or a changed
// word: the caller looks again in any case.
void futex_wait(const std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns) noexcept;

// Wakes every sleeper on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>* word) noexcept;

// Asymmetric barrier: after `heavy_barrier()` returns, every thread of every process that registered has executed
// a full memory barrier. It lets a publisher skip the store-load fence that a sleeper's check would need.
// register_light_barrier() must have succeeded in every process that publishes. Linux misses threads on a processor
// that was idle with their process's memory as that registered, until another process has run there;
// docs/architecture.md says what sleepers do about it.
bool register_light_barrier() noexcept;
bool heavy_barrier() noexcept;

}  // namespace tutti
