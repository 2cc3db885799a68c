// All-reduce, addition of a residual and RMS norm in one kernel, for small rows: add_rms_norm(all_reduce(x), residual).
//
// The data move as in the all-reduce's one shot over LL, over the same slots, but a row of all ranks is read by the
// block that normalises it (norm_rows.cuh), and s = sum + residual stays in its registers. A block sends its rows to
// all peers by itself, at 40 GB/s or so: of larger rows that takes longer than a second kernel, which is why those take
// one (norm_launch.h).
//
// Why output may be input, and residual_output may be residual: a row is only read by the block that writes it, each
// element by one thread, before it writes.
#pragma once

#include "algorithm/cuda/ll.cuh"
#include "algorithm/cuda/norm_rows.cuh"

namespace tutti::cuda {

template <int N, bool kAligned, class Lanes, class Team>
TUTTI_DEVICE void add_rms_norm_of(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                                  NormScratch& scratch) {
  using Held = HeldRows<1, kAligned, Team>;
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const int tasks = static_cast<int>(args.block_rows) * args.segments;
  // Before enter(), whose own loads take as long.
  Held held;
  float given = 1;
  if (team.is_worker()) {
    held.load(team, args, tasks);
    given = given_scale(args);
  }
  if (!call.enter()) return;
  if (team.is_worker()) {
    const int size = group_size<N>(world);
    const std::uint32_t flag = device::ll_flag(call.sequence());
    const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
    // Items count the vectors of whole segments.
    const auto item_of = [&](int i, int l) {
      return static_cast<std::size_t>((warp_of(team) + i * warps_of(team)) * kLanes + lane_of(team, l));
    };
    for_row_vectors<Held::kTasks>(team, args, tasks, [&](int i, int l, const RowVector& at) {
      TUTTI_UNROLL
      for (int k = 1; k < N; ++k) {
        if (k >= size) break;
        const int peer = rank_after(world, k);
        device::ll_store(call.ll(peer, 0, world.rank) + item_of(i, l), kLLItems, held.value(i, l, at), flag);
      }
    });
    bool ok = true;  // a thread whose wait has ended without its data still meets the others
    for_row_vectors<Held::kTasks>(team, args, tasks, [&](int i, int l, const RowVector& at) {
      Vec16 v[N];
      ok = ok && ll_receive<N>(world, call, 0, item_of(i, l), peers, v);
      if (!ok) return;
      put_own<N>(v, world.rank, held.value(i, l, at));
      held.template add_residual<Lanes>(args, i, l, at, ReduceSum<Lanes>::reduce(v, size, ReduceSpec{}));
    });
    norm_segments<Held::kTasks, kAligned, Lanes>(team, args, 0, tasks, scratch, held, given);
  }
  call.check_headers();
  call.leave();
}

template <bool kAligned, class Lanes, class Team>
TUTTI_DEVICE void add_rms_norm(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                               NormScratch& scratch) {
  with_group_size(world.size, [&]<int N>() { add_rms_norm_of<N, kAligned, Lanes>(team, world, args, scratch); });
}

}  // namespace tutti::cuda
