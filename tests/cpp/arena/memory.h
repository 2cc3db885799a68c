// What the arena tests say of memory.
#pragma once

#include <algorithm>
#include <cstddef>

namespace tutti {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Whether all `bytes` from `data` on have the value.
inline bool all(const std::byte* data, std::size_t bytes, int value) {
  return std::all_of(data, data + bytes, [value](std::byte b) { return b == static_cast<std::byte>(value); });
}

}  // namespace tutti
