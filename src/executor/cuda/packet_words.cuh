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

// What a lane takes of packets at once: two pieces of 8 bytes of payload, two packets each. On a GPU the second pieces
// of a warp's lanes follow its first ones, so that each instruction of a warp stores or loads 512 bytes of packets
// without holes: with a lane's 16 bytes side by side every store would write half of each sector, and a link carries it
// so.
//
// Which lane takes which piece depends on nothing but where in its operation the piece lies, so operations on packets
// that begin at one place put each piece on one lane (plan/verifier/execution.h).
struct PacketItem {
  std::uint64_t at[2];  // offsets in the payload
  int packets[2];       // fewer than 2 at its end
};
inline constexpr int kItemBytes = 16;

// How lanes share the payload of an operation.
struct PacketShare {
  std::uint64_t first;  // where this lane's first item begins
  std::uint64_t apart;  // from an item's first piece to its second
};
// `wide`: elements have 16 bytes, which one lane must see.
template <class Team>
TUTTI_DEVICE PacketShare packet_share(const Team& team, bool wide) {
  const auto worker = static_cast<std::uint32_t>(team.worker());
  // On the host, pairs of lanes, where there are such: as a warp's.
  const std::uint32_t warp = wide ? 1 : Team::kOnDevice ? 32 : team.workers() % 2 == 0 ? 2 : 1;
  return {worker / warp * warp * kItemBytes + worker % warp * 8, warp * 8};
}
// Packets of the piece at `at`.
TUTTI_DEVICE int packets_in(std::uint64_t at, std::uint64_t bytes) {
  return at >= bytes ? 0 : bytes - at >= 8 ? 2 : static_cast<int>((bytes - at + 3) / 4);
}
// kWhole: all of it lies within the payload.
template <bool kWhole>
TUTTI_DEVICE PacketItem packet_item(std::uint64_t at, const PacketShare& share, std::uint64_t bytes) {
  const std::uint64_t second = at + share.apart;
  if constexpr (kWhole) {
    return {{at, second}, {2, 2}};
  } else {
    return {{at, second}, {packets_in(at, bytes), packets_in(second, bytes)}};
  }
}

// The packets of an item.
struct PacketWords {
  std::uint64_t w[4];
};
// `pairs`: `from` is known to be aligned to 16 bytes.
TUTTI_DEVICE PacketWords load_packets(const std::uint64_t* from, const PacketItem& item, [[maybe_unused]] bool pairs) {
  PacketWords p{{0, 0, 0, 0}};
  TUTTI_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t* piece = from + item.at[i] / 4;
#if defined(__CUDA_ARCH__)
    if (pairs && item.packets[i] == 2) {
      const device::Pair64 two = device::load_relaxed(reinterpret_cast<const device::Pair64*>(piece));
      p.w[2 * i] = two.lo;
      p.w[2 * i + 1] = two.hi;
      continue;
    }
#endif
    if (item.packets[i] > 0) p.w[2 * i] = load_packet(piece);
    if (item.packets[i] > 1) p.w[2 * i + 1] = load_packet(piece + 1);
  }
  return p;
}
TUTTI_DEVICE bool packets_arrived(const PacketWords& p, const PacketItem& item, std::uint32_t flag) {
  bool all = true;
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    all = all && (i % 2 >= item.packets[i / 2] || static_cast<std::uint32_t>(p.w[i] >> 32) == flag);
  }
  return all;
}
TUTTI_DEVICE device::Vec16 payload_of(const PacketWords& p) {
  return {{static_cast<std::uint32_t>(p.w[0]), static_cast<std::uint32_t>(p.w[1]), static_cast<std::uint32_t>(p.w[2]),
           static_cast<std::uint32_t>(p.w[3])}};
}
TUTTI_DEVICE void store_words(std::uint64_t* to, const PacketItem& item, const PacketWords& p, bool pairs) {
  TUTTI_UNROLL
  for (int i = 0; i < 2; ++i) {
    std::uint64_t* piece = to + item.at[i] / 4;
    if (pairs && item.packets[i] == 2) {
      store_packet_pair(piece, p.w[2 * i], p.w[2 * i + 1]);
      continue;
    }
    if (item.packets[i] > 0) store_packet(piece, p.w[2 * i]);
    if (item.packets[i] > 1) store_packet(piece + 1, p.w[2 * i + 1]);
  }
}
TUTTI_DEVICE PacketWords words_of(const device::Vec16& v, std::uint32_t flag) {
  const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
  return {{v.w[0] | high, v.w[1] | high, v.w[2] | high, v.w[3] | high}};
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

// Bytes of the piece at `at`: 8, but at the end.
template <bool kWhole>
TUTTI_DEVICE std::uint64_t bytes_in_piece(std::uint64_t at, std::uint64_t bytes) {
  if constexpr (kWhole) return 8;
  return at >= bytes ? 0 : bytes - at < 8 ? bytes - at : 8;
}
// The plain bytes of an item of packets, at `p`. `aligned`: p is, to 8 bytes. kWhole: as of packet_item().
template <bool kWhole>
TUTTI_DEVICE device::Vec16 load_pieces(const std::byte* p, const PacketItem& item, std::uint64_t bytes,
                                       [[maybe_unused]] bool aligned) {
  device::Vec16 v{{0, 0, 0, 0}};
  TUTTI_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::byte* piece = p + item.at[i];
    const std::uint64_t left = bytes_in_piece<kWhole>(item.at[i], bytes);
#if defined(__CUDA_ARCH__)
    if (aligned && left == 8) {
      const auto two = *reinterpret_cast<const uint2*>(piece);
      v.w[2 * i] = two.x;
      v.w[2 * i + 1] = two.y;
      continue;
    }
#endif
    if (left == 0) continue;
    const device::Vec16 some = load_shifted(piece, left);
    v.w[2 * i] = some.w[0];
    v.w[2 * i + 1] = some.w[1];
  }
  return v;
}
template <bool kWhole>
TUTTI_DEVICE void store_pieces(std::byte* p, const PacketItem& item, const device::Vec16& v, std::uint64_t bytes,
                               [[maybe_unused]] bool aligned) {
  TUTTI_UNROLL
  for (int i = 0; i < 2; ++i) {
    std::byte* piece = p + item.at[i];
    const std::uint64_t left = bytes_in_piece<kWhole>(item.at[i], bytes);
#if defined(__CUDA_ARCH__)
    if (aligned && left == 8) {
      *reinterpret_cast<uint2*>(piece) = uint2{v.w[2 * i], v.w[2 * i + 1]};
      continue;
    }
#endif
    if (left != 0) store_shifted(piece, {{v.w[2 * i], v.w[2 * i + 1], 0, 0}}, left);
  }
}

// An item of 16 bytes that is whole and aligned.
TUTTI_DEVICE device::Vec16 load_aligned(const std::byte* p) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const device::Vec16*>(p);
#else
  return device::load_user(p, 16);
#endif
}
TUTTI_DEVICE void store_aligned(std::byte* p, const device::Vec16& v) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<device::Vec16*>(p) = v;
#else
  device::store_user(p, v, 16);
#endif
}

// An item of 16 bytes, where most are whole and aligned.
TUTTI_DEVICE device::Vec16 load_any(const std::byte* p, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  if (left >= 16 && device::aligned(p, 16)) return load_aligned(p);
#endif
  return load_shifted(p, left);
}
TUTTI_DEVICE void store_any(std::byte* p, const device::Vec16& v, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  if (left >= 16 && device::aligned(p, 16)) return store_aligned(p, v);
#endif
  store_shifted(p, v, left);
}

}  // namespace tutti::executor
