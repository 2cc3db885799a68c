// A thread block of a plan that several of the GPU's run together, as one with the workers of all: a thread block
// cluster (sm_90 and later), whose members reach each other's shared memory. A multiprocessor stores 40 to 50 GB/s, so
// without that a plan of few thread blocks is slow.
//
// Its members join by a word in each member's shared memory (an mbarrier) that every member arrives at. What one has
// written before a join all have after it: arrivals release, waits acquire, and both are cumulative over the barriers
// of each member's own threads.
//
// Members run together or not at all: one that leaves before the end says so in a join that all take part in
// (leave_out(), begins()), and after the last join nobody touches another's shared memory.
//
// Of any other team these functions do nothing: it is one block.
#pragma once

#include "algorithm/cuda/team.cuh"

namespace tutti::cuda {

// Before all else, all threads. Others of the cluster may not have begun when it returns.
template <class Team>
TUTTI_DEVICE void open(const Team& /*team*/) {}
// Then all threads again: all members have opened.
template <class Team>
TUTTI_DEVICE void await_members(const Team& /*team*/) {}
// The block by itself, as it takes part in a call.
template <class Team>
TUTTI_DEVICE const Team& own_block(const Team& team) {
  return team;
}
// Whether this is the one that takes part in calls.
template <class Team>
TUTTI_DEVICE bool leads(const Team& /*team*/) {
  return true;
}
// All threads of one that will not run, behind await_members().
template <class Team>
TUTTI_DEVICE void leave_out(const Team& /*team*/) {}
// Workers, before they run, likewise: whether all do.
template <class Team>
TUTTI_DEVICE bool begins(const Team& /*team*/) {
  return true;
}

#if defined(__CUDACC__)
// kGiven: its size, or 0 if the launch says it.
template <int kGiven>
class ClusterTeam {
 public:
  static constexpr bool kOnDevice = true;

  __device__ __forceinline__ ClusterTeam() : size_(kGiven), rank_(0) {
#if __CUDA_ARCH__ >= 900
    if (kGiven == 0) asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size_));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank_));
#else
    size_ = 1;
#endif
  }

  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x / static_cast<unsigned>(size())); }
  __device__ __forceinline__ int blocks() const { return static_cast<int>(gridDim.x / static_cast<unsigned>(size())); }
  __device__ __forceinline__ int workers() const { return GridTeam{}.workers() * size(); }
  // Workers of the first member come first. Of threads that are none, any number above theirs.
  __device__ __forceinline__ int worker() const {
    const int mine = GridTeam{}.worker();
    return is_worker() ? rank_ * GridTeam{}.workers() + mine : workers() + mine;
  }
  __device__ __forceinline__ bool is_worker() const { return GridTeam{}.is_worker(); }
  __device__ __forceinline__ bool leads() const { return rank_ == 0; }

  __device__ __forceinline__ void open() const {
#if __CUDA_ARCH__ >= 900
    if (size() == 1) return;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&shared().arrived)), "r"(size()) : "memory");
      shared().some[0] = shared().some[1] = 0;
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    // release: the words above; pairs with the acquire in await_members().
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
  }
  // All threads: what arrives at a barrier of the cluster waits there too. acquire: after it the words of every member
  // may be used.
  __device__ __forceinline__ void await_members() const {
#if __CUDA_ARCH__ >= 900
    if (size() > 1) asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }

  // As GridTeam's, of the workers of all members.
  __device__ __forceinline__ bool any_worker(bool mine) const {
    const bool some = GridTeam{}.any_worker(mine);
    if (size() == 1) return some;
    return join(some);
  }

 private:
  struct Shared {
    std::uint64_t arrived;
    // By the parity of the join: a member may be one join ahead, and its word must not be taken for one of this join,
    // which some threads would have seen and others not.
    std::uint32_t some[2];
  };

  __device__ __forceinline__ int size() const { return kGiven > 0 ? kGiven : size_; }
  __device__ __forceinline__ static Shared& shared() {
    __shared__ Shared shared;
    return shared;
  }
  __device__ __forceinline__ static std::uint32_t address(const void* at) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
  }
  __device__ __forceinline__ bool join([[maybe_unused]] bool some) const {
#if __CUDA_ARCH__ >= 900
    const std::uint32_t parity = joins_++ & 1;
    if (threadIdx.x < static_cast<unsigned>(size())) {
      // This lane tells member number threadIdx.x.
      const auto at = [](const void* here) {
        std::uint32_t there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(here)), "r"(threadIdx.x));
        return there;
      };
      if (some) asm volatile("st.shared::cluster.u32 [%0], 1;" ::"r"(at(&shared().some[parity])) : "memory");
      // release: with the block's barrier before it, all that this member has written, the word above included; pairs
      // with the acquire below.
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at(&shared().arrived))
                   : "memory");
    }
    std::uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
          " selp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(address(&shared().arrived)), "r"(parity)
          : "memory");
    }
    std::uint32_t told;
    asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(told) : "r"(address(&shared().some[parity])) : "memory");
    return told != 0;
#else
    return some;
#endif
  }

  int size_;
  int rank_;
  mutable std::uint32_t joins_ = 0;  // the same on all workers of all members
};

template <int kGiven>
__device__ __forceinline__ void open(const ClusterTeam<kGiven>& team) {
  team.open();
}
template <int kGiven>
__device__ __forceinline__ void await_members(const ClusterTeam<kGiven>& team) {
  team.await_members();
}
template <int kGiven>
__device__ __forceinline__ GridTeam own_block(const ClusterTeam<kGiven>& /*team*/) {
  return {};
}
template <int kGiven>
__device__ __forceinline__ bool leads(const ClusterTeam<kGiven>& team) {
  return team.leads();
}
template <int kGiven>
__device__ __forceinline__ void leave_out(const ClusterTeam<kGiven>& team) {
  if (team.is_worker()) static_cast<void>(team.any_worker(true));
}
template <int kGiven>
__device__ __forceinline__ bool begins(const ClusterTeam<kGiven>& team) {
  return !team.any_worker(false);
}
#endif

}  // namespace tutti::cuda
