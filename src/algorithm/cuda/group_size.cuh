// Ranks of a group: their number as a constant of the compiler, where that is worth a kernel of its own, and in turn.
#pragma once

#include "channel/cuda/device_world.h"

namespace tutti::cuda {

// Kernels are compiled for groups of 2 and of 4, and once for all others: with the size known, loops over ranks become
// short straight code, which a small call has to fetch each time it runs. N is that size, or the largest.
template <int N>
TUTTI_DEVICE int group_size(const DeviceWorld& world) {
  return N == device::kMaxRanks ? world.size : N;
}
// The k-th rank after this one, 0 < k < size. Each rank starts with another peer, so that no link has all of them.
TUTTI_DEVICE int rank_after(const DeviceWorld& world, int k) {
  return world.rank + k < world.size ? world.rank + k : world.rank + k - world.size;
}
// f.operator()<N>() for the group's N.
template <class F>
TUTTI_DEVICE void with_group_size(int size, F f) {
  if (size == 2) return f.template operator()<2>();
  if (size == 4) return f.template operator()<4>();
  f.template operator()<device::kMaxRanks>();
}

}  // namespace tutti::cuda
