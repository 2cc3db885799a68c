// The lost wake-ups of this process: waits that only their time slice ended (docs/architecture.md).
//
// A group's own are in its metrics, as long as it lives. Here are those of all groups, also of those that are gone, and
// of the process that this one was forked from: tests ask for the difference, whichever groups they make. Thread rule:
// any thread.
#pragma once

#include <cstdint>

namespace tutti {

void count_rescued_wait() noexcept;
std::uint64_t rescued_waits_of_process() noexcept;

}  // namespace tutti
