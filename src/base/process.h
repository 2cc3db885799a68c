// What this process may use and whether another still lives.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace tutti {

// Cores this process may use: affinity, bounded by the cgroup's CPU quota (rounded up), at least 1.
int usable_cores() noexcept;

// Cores that this process and `others` may use together: launchers often bind each rank to a core of its own. Ids that
// are not visible (0 or gone) count for nothing.
int usable_cores(std::span<const pid_t> others) noexcept;

// Bytes of memory that this process may use: the machine's, bounded by the control group's limit.
std::size_t usable_memory_bytes() noexcept;

// Bytes of the largest cache of this machine's cores, shared or not; a common size where the system does not say.
std::size_t last_cache_bytes() noexcept;

// A descriptor that becomes readable when the process ends; empty if the kernel or a filter refuses.
UniqueFd open_pidfd(pid_t pid) noexcept;

// True once the process behind `pidfd` has ended.
bool pidfd_ended(int pidfd) noexcept;

// Raises the soft limit on this process's descriptors to the hard one, at most to 1,048,576. The soft one is often
// 1,024 so that select() works, which Tutti does not use.
void raise_descriptor_limit() noexcept;

// How many descriptors this process may have now.
std::size_t descriptor_limit() noexcept;

// Names this process among others: ranks with equal tokens share one address space.
const std::string& process_token();

// The name of this host, for messages.
std::string host_name();

// Identifies the machine as far as names can: boot id and network namespace. Equal names are a hint that memory
// may be shared, never a proof.
std::string host_hint();

// Equal only in one network namespace of one machine: a digest, in bytes, of the hint and of the addresses there, for
// machines that were cloned while they ran have one boot id. Empty where one of them is not known.
std::string machine_id();

}  // namespace tutti
