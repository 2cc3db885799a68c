// What tests say of memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>

namespace tutti {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Whether all `bytes` from `data` on have the value.
inline bool all(const std::byte* data, std::size_t bytes, int value) {
  return std::all_of(data, data + bytes, [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

// What of an anonymous file is in memory.
inline std::size_t resident_bytes(int fd) {
  struct stat status {};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

}  // namespace tutti
