// What the statements of a compiled plan are about: numbers of bytes, places, packets, words, and reductions.
//
// Plain values of one lane.
#pragma once

#include "device/cuda/reducers.cuh"

// A table that is part of the code.
#if defined(__CUDACC__)
#define TUTTI_TABLE static __constant__ const
#else
#define TUTTI_TABLE static constexpr
#endif

namespace tutti::executor {

// A number of bytes that is part of the code: copy(bytes<4096>, ...).
template <std::uint64_t kValue>
struct Bytes {};
template <std::uint64_t kValue>
inline constexpr Bytes<kValue> bytes{};

struct Place {
  std::byte* at;
  bool aligned;  // to 16 bytes
};
struct Packets {
  Place place;
  int writer;  // whom to blame if they do not come
};
struct Word {
  std::byte* at;
  int count;          // index of who counts it
  std::uint64_t add;  // how often it has been raised, or awaited, in this call then
  int peer;           // as above
};

template <class T, int kCount>
struct List {
  T items[kCount > 0 ? kCount : 1];
};
template <class... T>
TUTTI_DEVICE List<Place, static_cast<int>(sizeof...(T))> to(const T&... places) {
  return {{places...}};
}
template <class T, class... More>
TUTTI_DEVICE List<T, 1 + static_cast<int>(sizeof...(More))> from(const T& first, const More&... more) {
  return {{first, more...}};
}

// What a fold takes, in the order in which it is reduced: packets, and at most one place of plain bytes.
template <int kPackets, int kPlain>
struct Folded {
  static constexpr int kCount = kPackets + (kPlain < 0 ? 0 : 1);
  // Which source the packets at `index` are.
  TUTTI_DEVICE static constexpr int source(int index) { return kPlain >= 0 && index >= kPlain ? index + 1 : index; }
  TUTTI_DEVICE void add(const Packets& source) { packets.items[added++] = source; }
  TUTTI_DEVICE void add(const Place& source) { plain = source; }

  List<Packets, kPackets> packets{};
  Place plain{};
  int added = 0;
};
template <class T>
inline constexpr bool kIsPlain = false;
template <>
inline constexpr bool kIsPlain<Place> = true;
// Which of them is plain, or -1.
template <class... T>
constexpr int plain_of() {
  const bool plain[] = {kIsPlain<T>...};
  for (int i = 0; i < static_cast<int>(sizeof...(T)); ++i) {
    if (plain[i]) return i;
  }
  return -1;
}
template <class... T>
TUTTI_DEVICE auto of(const T&... sources) {
  constexpr int kPlain = plain_of<T...>();
  Folded<static_cast<int>(sizeof...(T)) - (kPlain < 0 ? 0 : 1), kPlain> all;
  (all.add(sources), ...);
  return all;
}

// Reductions that have no kernels of their own: of one dtype and operation.
template <DataType kDtype, ReduceOp kOp>
struct ReduceOne {
  static constexpr bool kWide = kDtype == DataType::kComplex128;  // packet_share()
  TUTTI_DEVICE static device::Vec16 reduce(const device::Vec16* v, int n, const cuda::ReduceSpec& given) {
    cuda::ReduceSpec spec;
    spec.dtype = kDtype;
    spec.op = given.op == ReduceOp::kAvg ? ReduceOp::kAvg : kOp;
    spec.divisor = given.divisor;
    device::Vec16 out{{0, 0, 0, 0}};
    cuda::with_codec(kDtype, cuda::ReduceBody{v, n, spec, out});
    return out;
  }
};

}  // namespace tutti::executor
