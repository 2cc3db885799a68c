// Memory of another process of this machine, read by the kernel (process_vm_readv): one copy, where memory that both
// map takes two.
//
// Thread rule: free functions, any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace tutti {

// Whether the kernel may be asked at all: a filter of system calls (seccomp) may end a process that asks.
bool may_read_cross_memory() noexcept;

// Reads `bytes` at `from` in the process `pid`. 0, or the errno of what went wrong; then some of it may have been read.
int read_cross_memory(pid_t pid, void* to, std::uint64_t from, std::size_t bytes) noexcept;

// Whether others could read these two bytes of this process so, the ends of something: of secret memory, and what some
// drivers map, the kernel gives them nothing.
bool is_cross_readable(const std::byte* first, const std::byte* last) noexcept;

// Whether this machine reads so at 8 GB/s or more. Measured by the first caller of a process, in some tenths of a
// millisecond.
bool cross_memory_pays() noexcept;

}  // namespace tutti
