// Collectives without copies, on memory that all ranks map at the same place: they read the peers' inputs and write the
// peers' outputs. For large messages.
//
// All-reduce of S bytes, two-shot: rank p reads the p-th chunk of every input ((n-1)/n S in), reduces it, and writes
// the result to every output ((n-1)/n S out). Reduce-scatter is its first half, all-gather its second.
//
// Block b handles the same part of every chunk on all ranks, so it waits for the same block of its peers only: before
// it reads (their inputs are complete, their outputs may be overwritten) and after it has written (its own output is
// complete, its input has been read). Each item is read and written by one thread, so the output may be the input.
#pragma once

#include "algorithm/cuda/bulk.cuh"

namespace tutti::cuda {

struct DirectArgs {
  const std::byte* input[kMaxRanks] = {};  // of every rank, as mapped here
  std::byte* output[kMaxRanks] = {};
  std::size_t bytes = 0;        // of an all-reduce: of the input; else of one block
  std::size_t chunk_bytes = 0;  // of each rank's chunk
  std::size_t block_bytes = 0;  // of every chunk, what one block handles
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  ReduceSpec spec;
};

// Whether all inputs and outputs that a kernel touches are aligned to whole vectors.
TUTTI_DEVICE bool direct_aligned(const DeviceWorld& world, const DirectArgs& args) {
  bool all = true;
  for (int p = 0; p < world.size; ++p)
    all = device::aligned(args.input[p], 16) && device::aligned(args.output[p], 16) && all;
  return all;
}

// Reduces [r.begin, r.end) of all inputs; emit(offset, vector, left) takes the results. Two items of every rank are in
// flight a thread where memory is aligned.
template <int N, class R, class Team, class Emit>
TUTTI_DEVICE void direct_reduce(const Team& team, const DeviceWorld& world, const DirectArgs& args, Range r,
                                Emit emit) {
  if (!team.is_worker()) return;
  const int size = group_size<N>(world);
  const auto stride = static_cast<std::size_t>(team.workers()) * 16;
  std::size_t at = r.begin + static_cast<std::size_t>(team.worker()) * 16;
#if defined(__CUDA_ARCH__)
  if (direct_aligned(world, args) && r.begin % 16 == 0) {
    for (; at + stride + 16 <= r.end; at += 2 * stride) {
      Vec16 v[2][N];
      TUTTI_UNROLL
      for (int u = 0; u < 2; ++u) {
        TUTTI_UNROLL
        for (int p = 0; p < N; ++p) {
          if (p < size) v[u][p] = *reinterpret_cast<const Vec16*>(args.input[p] + at + u * stride);
        }
      }
      emit(at, R::reduce(v[0], size, args.spec), 16);
      emit(at + stride, R::reduce(v[1], size, args.spec), 16);
    }
  }
#endif
  for (; at < r.end; at += stride) {
    Vec16 v[N];
    TUTTI_UNROLL
    for (int p = 0; p < N; ++p) {
      if (p < size) v[p] = device::load_user(args.input[p] + at, r.end - at);
    }
    emit(at, R::reduce(v, size, args.spec), r.end - at);
  }
}

// Both barriers around f(), which runs only if all peers make the same call: it touches their memory.
template <class Team, class F>
TUTTI_DEVICE void direct_call(const Team& team, const DeviceWorld& world, const DirectArgs& args, F f) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  const bool agreed = call.check_headers();
  const BulkRing<Team> ring(team, world, call);
  team.sync();
  ring.signal(0, 0);
  if (ring.wait(0, 0) && !team.any(!agreed)) {
    f();
    team.sync();
    ring.signal(1, 0);
    ring.wait(1, 0);
  }
  ring.finish(1);
  call.leave();
}

template <int N, class R, class Team>
TUTTI_DEVICE void direct_all_reduce_of(const Team& team, const DeviceWorld& world, const DirectArgs& args) {
  direct_call(team, world, args, [&] {
    const Range mine = part(part(args.bytes, args.chunk_bytes, world.rank), args.block_bytes, team.block());
    direct_reduce<N, R>(team, world, args, mine, [&](std::size_t at, const Vec16& v, std::size_t left) {
      TUTTI_UNROLL
      for (int k = 0; k < N; ++k) {
        if (k >= group_size<N>(world)) break;
        const int peer = rank_after(world, k);
        device::store_user(args.output[peer] + at, v, left);
      }
    });
  });
}

template <int N, class R, class Team>
TUTTI_DEVICE void direct_reduce_scatter_of(const Team& team, const DeviceWorld& world, const DirectArgs& args) {
  direct_call(team, world, args, [&] {
    const std::size_t base = args.bytes * static_cast<std::size_t>(world.rank);
    const Range part_of_block = part(args.bytes, args.block_bytes, team.block());
    const Range mine{base + part_of_block.begin, base + part_of_block.end};
    direct_reduce<N, R>(team, world, args, mine, [&](std::size_t at, const Vec16& v, std::size_t left) {
      device::store_user(args.output[world.rank] + (at - base), v, left);
    });
  });
}

template <class Team>
TUTTI_DEVICE void direct_all_gather(const Team& team, const DeviceWorld& world, const DirectArgs& args) {
  direct_call(team, world, args, [&] {
    const std::size_t base = args.bytes * static_cast<std::size_t>(world.rank);
    const Range mine = part(args.bytes, args.block_bytes, team.block());
    std::byte* to[kMaxRanks - 1] = {};
    TUTTI_UNROLL
    for (int d = 1; d < kMaxRanks; ++d) {
      const int peer = rank_after(world, d);
      if (d < world.size) to[d - 1] = args.output[peer] + base + mine.begin;
    }
    const std::byte* from = args.input[world.rank] + mine.begin;
    std::byte* own = args.output[world.rank] + base + mine.begin;
    const bool along = own != from && device::aligned(own, 16);
    worker_spread(team, to, world.size - 1, along ? own : nullptr, from, mine.bytes());
    if (own != from && !along) worker_copy(team, own, from, mine.bytes());
  });
}

template <class R, class Team>
TUTTI_DEVICE void direct_all_reduce(const Team& team, const DeviceWorld& world, const DirectArgs& args) {
  with_group_size(world.size, [&]<int N>() { direct_all_reduce_of<N, R>(team, world, args); });
}
template <class R, class Team>
TUTTI_DEVICE void direct_reduce_scatter(const Team& team, const DeviceWorld& world, const DirectArgs& args) {
  with_group_size(world.size, [&]<int N>() { direct_reduce_scatter_of<N, R>(team, world, args); });
}

}  // namespace tutti::cuda
