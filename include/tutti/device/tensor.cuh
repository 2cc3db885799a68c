// Plain loads and stores of a caller's tensor, 16 bytes at a time, at any alignment and up to its last byte.
#pragma once

#include "tutti/device/memory.cuh"

#if !defined(__CUDA_ARCH__)
#include <cstring>
#endif

namespace tutti::device {

// 16 bytes as they lie in memory: what one thread moves at a time.
struct alignas(16) Vec16 {
  std::uint32_t w[4];
};

// Whether `p` and everything at whole multiples of `step` from it is aligned to `step` bytes.
TUTTI_DEVICE bool aligned(const void* p, std::size_t step) {
  return (reinterpret_cast<std::uintptr_t>(p) & (step - 1)) == 0;
}

namespace detail {

// `bytes` (at most 16) in units that both sides' alignment allows.
TUTTI_DEVICE_CALL void copy_at_any_alignment(void* to, const void* from, std::size_t bytes) {
#if defined(__CUDA_ARCH__)
  if (aligned(to, 4) && aligned(from, 4) && bytes % 4 == 0) {
    for (std::size_t i = 0; i < bytes / 4; ++i) {
      static_cast<std::uint32_t*>(to)[i] = static_cast<const std::uint32_t*>(from)[i];
    }
  } else if (aligned(to, 2) && aligned(from, 2) && bytes % 2 == 0) {
    for (std::size_t i = 0; i < bytes / 2; ++i) {
      static_cast<std::uint16_t*>(to)[i] = static_cast<const std::uint16_t*>(from)[i];
    }
  } else {
    for (std::size_t i = 0; i < bytes; ++i) {
      static_cast<std::uint8_t*>(to)[i] = static_cast<const std::uint8_t*>(from)[i];
    }
  }
#else
  std::memcpy(to, from, bytes);
#endif
}

TUTTI_DEVICE_CALL Vec16 load_at_any_alignment(const std::byte* p, std::size_t bytes) {
  Vec16 v{{0, 0, 0, 0}};
  copy_at_any_alignment(&v, p, bytes < 16 ? bytes : 16);
  return v;
}
TUTTI_DEVICE_CALL void store_at_any_alignment(std::byte* p, Vec16 v, std::size_t bytes) {
  copy_at_any_alignment(p, &v, bytes < 16 ? bytes : 16);
}

}  // namespace detail

// The 16 bytes (or `bytes`, if less; the rest zero) of the caller's tensor at `p`, which may have any alignment. Inline
// is what aligned tensors need, and the half vectors of LL128's lines; the rest is a call, so that kernels stay short.
TUTTI_DEVICE Vec16 load_user(const std::byte* p, std::size_t bytes) {
#if defined(__CUDA_ARCH__)
  if (bytes >= 16 && aligned(p, 16)) return *reinterpret_cast<const Vec16*>(p);
  if (aligned(p, 8) && (bytes >= 16 || bytes == 8)) {
    const uint2 low = *reinterpret_cast<const uint2*>(p);
    const uint2 high = bytes >= 16 ? *reinterpret_cast<const uint2*>(p + 8) : uint2{0, 0};
    return {{low.x, low.y, high.x, high.y}};
  }
#endif
  return detail::load_at_any_alignment(p, bytes);
}

TUTTI_DEVICE void store_user(std::byte* p, const Vec16& v, std::size_t bytes) {
#if defined(__CUDA_ARCH__)
  if (bytes >= 16 && aligned(p, 16)) {
    *reinterpret_cast<Vec16*>(p) = v;
    return;
  }
  if (aligned(p, 8) && (bytes >= 16 || bytes == 8)) {
    *reinterpret_cast<uint2*>(p) = uint2{v.w[0], v.w[1]};
    if (bytes >= 16) *reinterpret_cast<uint2*>(p + 8) = uint2{v.w[2], v.w[3]};
    return;
  }
#endif
  detail::store_at_any_alignment(p, v, bytes);
}

}  // namespace tutti::device
