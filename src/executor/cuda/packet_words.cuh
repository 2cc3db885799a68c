// Packets of plans, and plain items of 16 bytes, as kernels load and store them: what the interpreter and compiled
// plans have in common, so that ranks that run the one and the other understand each other.
//
// Thread rule: of one lane.
#pragma once

#include "tutti/device/packets.cuh"

namespace tutti::executor {

// Two packets: two words (payload, flag in the upper half).
TUTTI_DEVICE void store_packet_pair(std::uint64_t* to, std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  device::store_relaxed(reinterpret_cast<device::Pair64*>(to), device::Pair64{a, b});
#else
  // release: what this lane has read before it has read; pairs with the acquire in load_packet().
  device::store_release(to, a);
  device::store_release(to + 1, b);
#endif
}
TUTTI_DEVICE void store_packet(std::uint64_t* to, std::uint64_t word) {
#if defined(__CUDA_ARCH__)
  device::store_relaxed(to, word);
#else
  device::store_release(to, word);    // release: as above
#endif
}
TUTTI_DEVICE std::uint64_t load_packet(const std::uint64_t* from) {
#if defined(__CUDA_ARCH__)
  return device::load_relaxed(from);
#else
  return device::load_acquire(from);  // acquire: pairs with the releases above
#endif
}

// Packets that order plain data: joins before and after make each lane's fence speak for the block. The host's packets
// release and acquire as they are.
TUTTI_DEVICE void fence_packets() {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
#endif
}

// How many packets the item of 16 bytes has that begins `left` bytes before the end.
TUTTI_DEVICE int packets_in(std::uint64_t left) { return left >= 16 ? 4 : static_cast<int>((left + 3) / 4); }

// The packets of up to 16 bytes of payload.
struct PacketWords {
  std::uint64_t w[4];
};
// `pairs`: `from` is known to be aligned to 16 bytes.
TUTTI_DEVICE PacketWords load_packets(const std::uint64_t* from, int count, [[maybe_unused]] bool pairs) {
  PacketWords p{{0, 0, 0, 0}};
#if defined(__CUDA_ARCH__)
  if (count == 4 && pairs) {
    const device::Pair64 a = device::load_relaxed(reinterpret_cast<const device::Pair64*>(from));
    const device::Pair64 b = device::load_relaxed(reinterpret_cast<const device::Pair64*>(from + 2));
    return {{a.lo, a.hi, b.lo, b.hi}};
  }
#endif
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i < count) p.w[i] = load_packet(from + i);
  }
  return p;
}
TUTTI_DEVICE PacketWords load_packets(const std::uint64_t* from, int count) {
  return load_packets(from, count, device::aligned(from, 16));
}
TUTTI_DEVICE bool packets_arrived(const PacketWords& p, int count, std::uint32_t flag) {
  bool all = true;
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) all = all && (i >= count || static_cast<std::uint32_t>(p.w[i] >> 32) == flag);
  return all;
}
TUTTI_DEVICE device::Vec16 payload_of(const PacketWords& p) {
  return {{static_cast<std::uint32_t>(p.w[0]), static_cast<std::uint32_t>(p.w[1]), static_cast<std::uint32_t>(p.w[2]),
           static_cast<std::uint32_t>(p.w[3])}};
}
TUTTI_DEVICE void store_words(std::uint64_t* to, const PacketWords& p, int count, bool pairs) {
  if (count == 4 && pairs) {
    store_packet_pair(to, p.w[0], p.w[1]);
    store_packet_pair(to + 2, p.w[2], p.w[3]);
    return;
  }
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i < count) store_packet(to + i, p.w[i]);
  }
}
TUTTI_DEVICE void store_words(std::uint64_t* to, const PacketWords& p, int count) {
  store_words(to, p, count, device::aligned(to, 16));
}
TUTTI_DEVICE PacketWords words_of(const device::Vec16& v, std::uint32_t flag) {
  const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
  return {{v.w[0] | high, v.w[1] | high, v.w[2] | high, v.w[3] | high}};
}
TUTTI_DEVICE void store_packets(std::uint64_t* to, const device::Vec16& v, int count, std::uint32_t flag) {
  store_words(to, words_of(v, flag), count);
}

// An item of 16 bytes (or `left`, if less) at any alignment. Short rolled loops: of unaligned tensors a plan makes
// many, and a call would make everything around it spill. On the host a copy of bytes.
TUTTI_DEVICE device::Vec16 load_shifted(const std::byte* p, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t bytes = left < 16 ? static_cast<std::uint32_t>(left) : 16;
  device::Vec16 v{{0, 0, 0, 0}};
  if (device::aligned(p, 4) && bytes % 4 == 0) {
    // From the last word on: each moves the others up.
    TUTTI_ROLLED
    for (std::uint32_t i = bytes; i > 0; i -= 4) {
      v = {{*reinterpret_cast<const std::uint32_t*>(p + i - 4), v.w[0], v.w[1], v.w[2]}};
    }
    return v;
  }
  TUTTI_ROLLED
  for (std::uint32_t i = bytes; i > 0; --i) {
    v = {{v.w[0] << 8 | static_cast<std::uint32_t>(p[i - 1]), __funnelshift_l(v.w[0], v.w[1], 8),
          __funnelshift_l(v.w[1], v.w[2], 8), __funnelshift_l(v.w[2], v.w[3], 8)}};
  }
  return v;
#else
  return device::load_user(p, left);
#endif
}
TUTTI_DEVICE void store_shifted(std::byte* p, device::Vec16 v, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t bytes = left < 16 ? static_cast<std::uint32_t>(left) : 16;
  if (device::aligned(p, 4) && bytes % 4 == 0) {
    TUTTI_ROLLED
    for (std::uint32_t i = 0; i < bytes; i += 4) {
      *reinterpret_cast<std::uint32_t*>(p + i) = v.w[0];
      v = {{v.w[1], v.w[2], v.w[3], 0}};
    }
    return;
  }
  TUTTI_ROLLED
  for (std::uint32_t i = 0; i < bytes; ++i) {
    p[i] = static_cast<std::byte>(v.w[0] & 0xff);
    v = {{__funnelshift_r(v.w[0], v.w[1], 8), __funnelshift_r(v.w[1], v.w[2], 8), __funnelshift_r(v.w[2], v.w[3], 8),
          v.w[3] >> 8}};
  }
#else
  device::store_user(p, v, left);
#endif
}

// The same, where most are whole and aligned.
TUTTI_DEVICE device::Vec16 load_any(const std::byte* p, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  if (left >= 16 && device::aligned(p, 16)) return *reinterpret_cast<const device::Vec16*>(p);
#endif
  return load_shifted(p, left);
}
TUTTI_DEVICE void store_any(std::byte* p, const device::Vec16& v, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  if (left >= 16 && device::aligned(p, 16)) {
    *reinterpret_cast<device::Vec16*>(p) = v;
    return;
  }
#endif
  store_shifted(p, v, left);
}

}  // namespace tutti::executor
