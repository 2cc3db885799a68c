// Packets: data and flag in one store, so that a message needs no fence and no second trip.
//
// LL: 16 bytes hold 8 bytes of data; each half of 8 bytes carries its own flag, because only 8 bytes are known to
// arrive together. Half of the wire is flags: for small messages. LL128: 128 bytes hold 120 of data and one flag of 8
// bytes, written by 8 neighbouring lanes in one instruction. It relies on such a store arriving whole, which NVLink
// does and the probe at start checks; never used over PCIe. Both after NCCL's protocols of these names.
//
// Flags: never 0, which is what fresh memory holds. An LL flag is 30 bits of the block's sequence number, so it comes
// back after 2^30 calls; slots are scrubbed before that (see algorithm/cuda/block_call.cuh).
#pragma once

#include "tutti/device/tensor.cuh"
#include "tutti/device/wait.cuh"

namespace tutti::device {

inline constexpr std::uint64_t kFlagPeriod = std::uint64_t{1} << 30;

TUTTI_DEVICE std::uint32_t ll_flag(std::uint64_t sequence) {
  return 0x80000000u | static_cast<std::uint32_t>(sequence & (kFlagPeriod - 1));
}

// 16 bytes of data as two packets, `plane` packets apart: the packets of neighbouring threads are neighbours.
TUTTI_DEVICE void ll_store(Pair64* slot, std::size_t plane, const Vec16& v, std::uint32_t flag) {
  const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
  store_relaxed(slot, Pair64{v.w[0] | high, v.w[1] | high});
  store_relaxed(slot + plane, Pair64{v.w[2] | high, v.w[3] | high});
}

// Two packets as they were read; `ll_arrived` tells whether they are this call's.
struct LLItem {
  Pair64 first, second;
};
TUTTI_DEVICE LLItem ll_load(const Pair64* slot, std::size_t plane) {
  return {load_relaxed(slot), load_relaxed(slot + plane)};
}
TUTTI_DEVICE bool ll_arrived(const LLItem& item, std::uint32_t flag) {
  return static_cast<std::uint32_t>(item.first.lo >> 32) == flag &&
         static_cast<std::uint32_t>(item.first.hi >> 32) == flag &&
         static_cast<std::uint32_t>(item.second.lo >> 32) == flag &&
         static_cast<std::uint32_t>(item.second.hi >> 32) == flag;
}
TUTTI_DEVICE Vec16 ll_data(const LLItem& item) {
  return {{static_cast<std::uint32_t>(item.first.lo), static_cast<std::uint32_t>(item.first.hi),
           static_cast<std::uint32_t>(item.second.lo), static_cast<std::uint32_t>(item.second.hi)}};
}

// LL128. A line is 8 units of 16 bytes; unit 7 holds 8 bytes of data and the flag. `unit` counts over all lines.
inline constexpr int kLineUnits = 8;
inline constexpr std::size_t kLineData = 120;

TUTTI_DEVICE std::uint64_t ll128_flag(std::uint64_t sequence) { return sequence + 1; }

// Where a unit's data starts in the message, and how many bytes it has.
TUTTI_DEVICE std::size_t unit_offset(std::size_t unit) {
  return unit / kLineUnits * kLineData + unit % kLineUnits * 16;
}
TUTTI_DEVICE std::size_t unit_bytes(std::size_t unit) { return unit % kLineUnits == kLineUnits - 1 ? 8 : 16; }
// Units, a multiple of 8, that hold `bytes`.
TUTTI_DEVICE std::size_t units_for(std::size_t bytes) { return (bytes + kLineData - 1) / kLineData * kLineUnits; }

TUTTI_DEVICE Pair64 to_pair(const Vec16& v) {
  return {v.w[0] | static_cast<std::uint64_t>(v.w[1]) << 32, v.w[2] | static_cast<std::uint64_t>(v.w[3]) << 32};
}
TUTTI_DEVICE Vec16 to_vec(const Pair64& p) {
  return {{static_cast<std::uint32_t>(p.lo), static_cast<std::uint32_t>(p.lo >> 32), static_cast<std::uint32_t>(p.hi),
           static_cast<std::uint32_t>(p.hi >> 32)}};
}

// The 8 lanes of a line meet: they then store, or load, by one instruction.
TUTTI_DEVICE void meet_line() {
#if defined(__CUDA_ARCH__)
  __syncwarp(0xffu << (threadIdx.x & 24));
#endif
}

// Stores one unit. On the device the 8 lanes of a line call it together; the lane's number is unit % 32.
TUTTI_DEVICE void ll128_store(Pair64* line_base, std::size_t unit, const Vec16& v, std::uint64_t flag) {
  Pair64 pair = to_pair(v);
  const bool last = unit % kLineUnits == kLineUnits - 1;
  if (last) pair.hi = flag;
#if defined(__CUDA_ARCH__)
  meet_line();
  asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(line_base + unit), "l"(pair.lo), "l"(pair.hi)
               : "memory");
#else
  Pair64* p = line_base + unit;
  std::atomic_ref<std::uint64_t>(p->lo).store(pair.lo, std::memory_order_relaxed);
  // The host writes a line unit by unit: release stands for the line's arriving whole.
  std::atomic_ref<std::uint64_t>(p->hi).store(pair.hi, last ? std::memory_order_release : std::memory_order_relaxed);
#endif
}

// One unit as it was read. `flag` is the line's: on the device only the lane of the line's last unit has it.
struct LL128Item {
  Pair64 pair;
  std::uint64_t flag;
};
TUTTI_DEVICE LL128Item ll128_load(const Pair64* line_base, std::size_t unit) {
  LL128Item item;
#if defined(__CUDA_ARCH__)
  meet_line();
  asm volatile("ld.volatile.global.v2.u64 {%0,%1}, [%2];"
               : "=l"(item.pair.lo), "=l"(item.pair.hi)
               : "l"(line_base + unit)
               : "memory");
  item.flag = item.pair.hi;
#else
  // acquire, before the words: pairs with the release of the line's flag; if it is this call's, the words are too.
  auto* p = const_cast<Pair64*>(line_base);
  const std::size_t last = unit / kLineUnits * kLineUnits + kLineUnits - 1;
  item.flag = std::atomic_ref<std::uint64_t>(p[last].hi).load(std::memory_order_acquire);
  item.pair.lo = std::atomic_ref<std::uint64_t>(p[unit].lo).load(std::memory_order_relaxed);
  item.pair.hi = std::atomic_ref<std::uint64_t>(p[unit].hi).load(std::memory_order_relaxed);
#endif
  return item;
}

// Whether this lane has no objection: lanes without a flag never have one; the warp asks all (`all_lanes`).
TUTTI_DEVICE bool ll128_arrived(std::size_t unit, const LL128Item& item, std::uint64_t flag) {
#if defined(__CUDA_ARCH__)
  return unit % kLineUnits != kLineUnits - 1 || item.flag == flag;
#else
  static_cast<void>(unit);
  return item.flag == flag;
#endif
}

// True if `mine` is true on every lane of the warp. All 32 lanes must call it.
TUTTI_DEVICE bool all_lanes(bool mine) {
#if defined(__CUDA_ARCH__)
  return __all_sync(0xffffffffu, mine) != 0;
#else
  return mine;
#endif
}

}  // namespace tutti::device
