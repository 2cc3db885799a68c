// What this process may use and whether another still lives.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace tutti {

// Cores this process may use: affinity, bounded by the cgroup's CPU quota (rounded up), at least 1.
int usable_cores() noexcept;

// A descriptor that becomes readable when the process ends; empty if the kernel or a filter refuses.
UniqueFd open_pidfd(pid_t pid) noexcept;

// True once the process behind `pidfd` has ended.
bool pidfd_ended(int pidfd) noexcept;

// Identifies the machine as far as names can: boot id and network namespace. Equal names are a hint that memory
// may be shared, never a proof.
std::string host_hint();

}  // namespace tutti
