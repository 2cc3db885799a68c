// Code for a warp, written once: on the device each thread is one of its 32 lanes; on the host one thread is all of
// them in turn, so that sums over lanes have the same order, and the same bits.
//
// What a lane holds is an array of kLanesHere entries: `for (int l = 0; l < kLanesHere<Team>; ++l)` visits them, and
// lane_of(team, l) is the lane's number.
#pragma once

#include "algorithm/cuda/team.cuh"

namespace tutti::cuda {

inline constexpr int kLanes = 32;

template <class Team>
inline constexpr int kLanesHere = Team::kOnDevice ? 1 : kLanes;

template <class Team>
TUTTI_DEVICE int lane_of(const Team& team, int l) {
  return Team::kOnDevice ? team.worker() % kLanes : l;
}
template <class Team>
TUTTI_DEVICE int warp_of(const Team& team) {
  return Team::kOnDevice ? team.worker() / kLanes : 0;
}
template <class Team>
TUTTI_DEVICE int warps_of(const Team& team) {
  return Team::kOnDevice ? team.workers() / kLanes : 1;
}
// On one lane of the warp.
template <class Team>
TUTTI_DEVICE bool is_first_lane(const Team& team) {
  return lane_of(team, 0) == 0;
}

// Calls f(i, task) for the tasks of this thread's warp; i counts them. With kMost, there are at most so many, and i is
// known to the compiler: what is indexed by it may stay in registers.
template <int kMost, class Team, class F>
TUTTI_DEVICE void for_warp_tasks(const Team& team, int tasks, F f) {
  if constexpr (kMost > 0) {
    TUTTI_UNROLL
    for (int i = 0; i < kMost; ++i) {
      const int task = warp_of(team) + i * warps_of(team);
      if (task < tasks) f(i, task);
    }
  } else {
    int i = 0;
    for (int task = warp_of(team); task < tasks; task += warps_of(team)) f(i++, task);
  }
}

// Combines the values of groups of `lanes` neighbouring lanes (a power of two); each lane gets its group's. `op` is
// commutative; the order is that of a tree whose first step joins lanes `lanes` / 2 apart.
template <class T, int kHere, class Op>
TUTTI_DEVICE void combine_lanes(T (&value)[kHere], int lanes, Op op) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
#if defined(__CUDA_ARCH__)
    value[0] = op(value[0], __shfl_xor_sync(0xffffffffu, value[0], distance));
#else
    T before[kHere];
    for (int l = 0; l < kHere; ++l) before[l] = value[l];
    for (int l = 0; l < kHere; ++l) value[l] = op(before[l], before[(l ^ distance) % kHere]);
#endif
  }
}

// What lane `from` holds. All lanes of the warp must call it.
template <class T, int kHere>
TUTTI_DEVICE T of_lane(const T (&value)[kHere], int from) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(0xffffffffu, value[0], from);
#else
  return value[from % kHere];
#endif
}

}  // namespace tutti::cuda
