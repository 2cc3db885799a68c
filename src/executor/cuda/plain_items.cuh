// Items of 16 bytes of plain data, as compiled plans load and store them: by instructions of 16 bytes, or as their
// alignment allows.
//
// Thread rule: of one lane.
#pragma once

#include "executor/cuda/compiled_operands.cuh"
#include "executor/cuda/packet_words.cuh"

namespace tutti::executor {

// rest: bytes from there on, of which an item takes 16 at most.
struct Aligned {
  TUTTI_DEVICE static device::Vec16 load(const std::byte* p, std::uint64_t rest) {
#if defined(__CUDA_ARCH__)
    if (rest >= 16) return load_aligned(p);
#endif
    return load_shifted(p, rest);
  }
  TUTTI_DEVICE static void store(std::byte* p, const device::Vec16& v, std::uint64_t rest) {
#if defined(__CUDA_ARCH__)
    if (rest >= 16) return store_aligned(p, v);
#endif
    store_shifted(p, v, rest);
  }
};
struct AnyAlignment {
  TUTTI_DEVICE static device::Vec16 load(const std::byte* p, std::uint64_t rest) { return load_shifted(p, rest); }
  TUTTI_DEVICE static void store(std::byte* p, const device::Vec16& v, std::uint64_t rest) {
    store_shifted(p, v, rest);
  }
};

TUTTI_DEVICE device::Vec16 load_item(const Place& place, std::uint64_t at, std::uint64_t rest) {
  return place.aligned ? Aligned::load(place.at + at, rest) : AnyAlignment::load(place.at + at, rest);
}
TUTTI_DEVICE void store_item(const Place& place, std::uint64_t at, const device::Vec16& v, std::uint64_t rest) {
  if (place.aligned) {
    Aligned::store(place.at + at, v, rest);
  } else {
    AnyAlignment::store(place.at + at, v, rest);
  }
}
template <int kCount>
TUTTI_DEVICE bool all_aligned(const List<Place, kCount>& places) {
  bool all = true;
  TUTTI_UNROLL
  for (int i = 0; i < kCount; ++i) all = all && places.items[i].aligned;
  return all;
}

}  // namespace tutti::executor
