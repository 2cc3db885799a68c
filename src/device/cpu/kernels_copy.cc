// Copies of memory that another core has written, and copies that bypass the caches.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "device/cpu/kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_copy.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per instruction set.
#include "device/cpu/kernel_table.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {

// Streaming stores write whole lines without reading them first; they need aligned destinations.
void stream(void* dst, const void* src, std::size_t bytes) {
  const hwy::HWY_NAMESPACE::ScalableTag<std::uint8_t> d;
  const std::size_t step = Lanes(d);
  auto* to = static_cast<std::uint8_t*>(dst);
  const auto* from = static_cast<const std::uint8_t*>(src);
  const std::size_t head = std::min(bytes, (64 - reinterpret_cast<std::uintptr_t>(to) % 64) % 64);
  std::memcpy(to, from, head);
  std::size_t i = head;
  for (; bytes - i >= 4 * step; i += 4 * step) {
    const auto a = LoadU(d, from + i);
    const auto b = LoadU(d, from + i + step);
    const auto e = LoadU(d, from + i + 2 * step);
    const auto f = LoadU(d, from + i + 3 * step);
    Stream(a, d, to + i);
    Stream(b, d, to + i + step);
    Stream(e, d, to + i + 2 * step);
    Stream(f, d, to + i + 3 * step);
  }
  // Streaming stores are not ordered with later ones, and those may tell a peer that the data is there.
  hwy::FlushStream();
  std::memcpy(to + i, from + i, bytes - i);
}

// Plain vector loads, several lines in flight. memcpy turns to string instructions from 2 KB up, and those wait for
// each line that lies modified in another core's cache: measured 13 ns a line against 7.5 for this loop.
void take(void* dst, const void* src, std::size_t bytes) {
  const hwy::HWY_NAMESPACE::ScalableTag<std::uint8_t> d;
  const std::size_t step = Lanes(d);
  auto* to = static_cast<std::uint8_t*>(dst);
  const auto* from = static_cast<const std::uint8_t*>(src);
  std::size_t i = 0;
  for (; bytes - i >= 4 * step; i += 4 * step) {
    const auto a = LoadU(d, from + i);
    const auto b = LoadU(d, from + i + step);
    const auto e = LoadU(d, from + i + 2 * step);
    const auto f = LoadU(d, from + i + 3 * step);
    StoreU(a, d, to + i);
    StoreU(b, d, to + i + step);
    StoreU(e, d, to + i + 2 * step);
    StoreU(f, d, to + i + 3 * step);
  }
  std::memcpy(to + i, from + i, bytes - i);
}

void fill_copy(KernelTable& table) {
  table.copy_from_peer = take;
  table.copy_streaming = stream;
  table.target = hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::cpu {

HWY_EXPORT(fill_copy);

void fill_copy_kernels(KernelTable& table) { HWY_DYNAMIC_DISPATCH(fill_copy)(table); }

}  // namespace tutti::cpu
#endif  // HWY_ONCE
