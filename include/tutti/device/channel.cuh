// One-sided channels between two ranks, for kernels of one's own: put, get, signal, wait, and packets.
//
// A MemoryChannel is a value made by the host (CudaMemory::channel) and passed to kernels. It names memory of
// this rank and the peer's memory of the same shape, mapped here, and a semaphore of each side. All members are called
// by all threads of a team (a block, or any group whose size and barrier the caller gives).
//
// Order: put, then the team's barrier, then signal() by one thread: the peer's wait(), followed by its barrier, sees
// the data. Both sides count signals in their own memory, so that a kernel can be captured in a graph and replayed.
#pragma once

#include "tutti/device/packets.cuh"

namespace tutti::device {

// The threads of one block; the host's stand-in is a single thread.
struct BlockTeam {
#if defined(__CUDACC__)
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ void sync() const { __syncthreads(); }
#endif
};
struct SerialTeam {
  TUTTI_DEVICE int thread() const { return 0; }
  TUTTI_DEVICE int threads() const { return 1; }
  TUTTI_DEVICE void sync() const {}
};

// Copies `bytes` with all threads of the team; four vectors in flight a thread where both sides are aligned.
template <class Team>
TUTTI_DEVICE void team_copy(const Team& team, std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto stride = static_cast<std::size_t>(team.threads()) * 16;
  std::size_t at = static_cast<std::size_t>(team.thread()) * 16;
#if defined(__CUDA_ARCH__)
  if (aligned(to, 16) && aligned(from, 16)) {
    for (; at + 3 * stride + 16 <= bytes; at += 4 * stride) {
      Vec16 v[4];
      TUTTI_UNROLL
      for (int u = 0; u < 4; ++u) v[u] = *reinterpret_cast<const Vec16*>(from + at + u * stride);
      TUTTI_UNROLL
      for (int u = 0; u < 4; ++u) *reinterpret_cast<Vec16*>(to + at + u * stride) = v[u];
    }
  }
#endif
  for (; at < bytes; at += stride) store_user(to + at, load_user(from + at, bytes - at), bytes - at);
}

// Counts signals between two ranks. `remote` is the peer's inbound word for this rank, `inbound` this rank's for the
// peer; `sent` and `seen` are counters in local memory. One thread at a time.
struct Semaphore {
  std::uint64_t* remote = nullptr;
  std::uint64_t* inbound = nullptr;
  std::uint64_t* sent = nullptr;
  std::uint64_t* seen = nullptr;

  // release: publishes what this thread, and the team before its barrier, has written; pairs with wait().
  TUTTI_DEVICE void signal() const { store_release(remote, ++*sent); }
  // acquire: see signal(). False if the wait ended without it.
  TUTTI_DEVICE bool wait(const Control& control, int peer) const {
    const std::uint64_t due = ++*seen;
    return wait_until(control, Awaited{peer, due, 0}, [&] { return load_acquire(inbound) >= due; });
  }
  // True if a wait() would return at once.
  TUTTI_DEVICE bool poll() const { return load_acquire(inbound) > *seen; }
};

struct MemoryChannel {
  Control control;
  int peer = -1;
  std::byte* local = nullptr;   // this rank's memory
  std::byte* remote = nullptr;  // the peer's, mapped here
  Semaphore semaphore;

  template <class Team>
  TUTTI_DEVICE void put(const Team& team, std::size_t to, std::size_t from, std::size_t bytes) const {
    team_copy(team, remote + to, local + from, bytes);
  }
  template <class Team>
  TUTTI_DEVICE void get(const Team& team, std::size_t to, std::size_t from, std::size_t bytes) const {
    team_copy(team, local + to, remote + from, bytes);
  }
  template <class Team>
  TUTTI_DEVICE void signal(const Team& team) const {
    team.sync();
    if (team.thread() == 0) semaphore.signal();
  }
  template <class Team>
  TUTTI_DEVICE void put_with_signal(const Team& team, std::size_t to, std::size_t from, std::size_t bytes) const {
    put(team, to, from, bytes);
    signal(team);
  }
  // False, on thread 0 alone, if the wait ended without the signal.
  template <class Team>
  TUTTI_DEVICE bool wait(const Team& team) const {
    const bool ok = team.thread() != 0 || semaphore.wait(control, peer);
    team.sync();
    return ok;
  }

  // LL packets: `to` is the offset of the packets in the peer's memory (16-byte aligned, 2 x bytes rounded up to 16).
  template <class Team>
  TUTTI_DEVICE void put_packets(const Team& team, std::size_t to, std::size_t from, std::size_t bytes,
                                std::uint32_t flag) const {
    const std::size_t items = (bytes + 15) / 16;
    auto* slot = reinterpret_cast<Pair64*>(remote + to);
    for (auto i = static_cast<std::size_t>(team.thread()); i < items; i += static_cast<std::size_t>(team.threads())) {
      ll_store(slot + i, items, load_user(local + from + i * 16, bytes - i * 16), flag);
    }
  }
  template <class Team>
  TUTTI_DEVICE bool read_packets(const Team& team, std::size_t to, std::size_t from, std::size_t bytes,
                                 std::uint32_t flag) const {
    const std::size_t items = (bytes + 15) / 16;
    const auto* slot = reinterpret_cast<const Pair64*>(local + from);
    for (auto i = static_cast<std::size_t>(team.thread()); i < items; i += static_cast<std::size_t>(team.threads())) {
      LLItem item{};
      const bool ok = wait_until(control, Awaited{peer, flag, 0}, [&] {
        item = ll_load(slot + i, items);
        return ll_arrived(item, flag);
      });
      if (!ok) return false;
      store_user(local + to + i * 16, ll_data(item), bytes - i * 16);
    }
    return true;
  }
};

}  // namespace tutti::device
