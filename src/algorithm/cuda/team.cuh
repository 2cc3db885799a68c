// The threads of one block, as algorithms see them: workers move data; a last warp of its own looks after headers and
// signals, one lane a peer, so that neither waits for the other.
//
// GridTeam is the device's. SerialTeam, for the host, is one thread that does both.
#pragma once

#include "tutti/device/memory.cuh"

namespace tutti::cuda {

inline constexpr int kControlThreads = 32;

// In kernels that may be launched while what precedes them on their stream still ends (programmatic dependent launch,
// sm_90 and later): all that has ended behind it, and what it wrote is there. Before it nothing may be touched but
// parameters and what never changes. In any other launch it does nothing.
TUTTI_DEVICE void await_preceding() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// By one thread of a block: what follows on the stream may come, if it is launched so, once all blocks have said this
// or have ended. Not before all peers are known to run this call: what comes takes room on the GPU, which then none of
// them needs any more, so this kernel ends whatever comes. Who launches what follows may be the program.
TUTTI_DEVICE void let_next_come() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#if defined(__CUDACC__)
struct GridTeam {
  static constexpr bool kOnDevice = true;
  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int blocks() const { return static_cast<int>(gridDim.x); }
  __device__ __forceinline__ int workers() const { return static_cast<int>(blockDim.x) - kControlThreads; }
  __device__ __forceinline__ int worker() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ bool is_worker() const { return worker() < workers(); }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  // A barrier of the workers alone, beside the control warp's work. There are whole warps of them.
  __device__ __forceinline__ void sync_workers() const { asm volatile("bar.sync 1, %0;" ::"r"(workers()) : "memory"); }
  // A barrier that also tells every thread whether any of them says true.
  __device__ __forceinline__ bool any(bool mine) const { return __syncthreads_or(mine ? 1 : 0) != 0; }
  // The same of the workers alone.
  __device__ __forceinline__ bool any_worker(bool mine) const {
    std::uint32_t some;
    asm volatile("{.reg .pred a, b; setp.ne.u32 a, %1, 0; bar.red.or.pred b, 1, %2, a; selp.u32 %0, 1, 0, b;}"
                 : "=r"(some)
                 : "r"(mine ? 1u : 0u), "r"(workers())
                 : "memory");
    return some != 0;
  }
  // f(peer) for each rank but `rank`, each on a control lane of its own.
  template <class F>
  __device__ __forceinline__ void for_peers(int rank, int size, F f) const {
    const int peer = worker() - workers();
    if (peer >= 0 && peer < size && peer != rank) f(peer);
  }
  // Before or after step `number` of a protocol: see device::protocol_step(). All threads of a warp together.
  __device__ __forceinline__ void step([[maybe_unused]] std::uint64_t number) const {
#if defined(TUTTI_RANDOM_DELAYS)
    device::protocol_step(number << 16 ^ static_cast<std::uint64_t>(blockIdx.x << 6 | threadIdx.x >> 5));
    __syncwarp();
#endif
  }
  // On one control lane.
  __device__ __forceinline__ bool is_first_control() const { return worker() == workers(); }
  // Whether all threads of the caller's warp say true, all of which ask. What they have loaded is ordered before what
  // any of them does next.
  __device__ __forceinline__ bool all_of_warp(bool mine) const {
    const bool all = __all_sync(0xffffffffu, mine ? 1 : 0) != 0;
    __syncwarp();
    return all;
  }
};
#endif

struct SerialTeam {
  static constexpr bool kOnDevice = false;
  int block_index = 0;
  int block_count = 1;
  int block() const { return block_index; }
  int blocks() const { return block_count; }
  static int workers() { return 1; }
  static int worker() { return 0; }
  static bool is_worker() { return true; }
  static void sync() {}
  static void sync_workers() {}
  static bool any(bool mine) { return mine; }
  static bool any_worker(bool mine) { return mine; }
  template <class F>
  void for_peers(int rank, int size, F f) const {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) f(peer);
    }
  }
  static void step(std::uint64_t number) { device::protocol_step(number); }
  static bool is_first_control() { return true; }
  static bool all_of_warp(bool mine) { return mine; }
};

}  // namespace tutti::cuda
