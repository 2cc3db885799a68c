// All-reduce, addition of a residual and RMS norm in one kernel: add_rms_norm(all_reduce(x), residual), row by row.
//
// The data move as in the all-reduce's own kernels, over the same slots, but whole rows stay with one block. What a
// block then adds: s = sum + residual goes to residual_output, and its rows are normalised (norm_rows.cuh).
//
//   LL, one shot       a row of all ranks is read by the block that normalises it; s stays in registers. Decoding.
//   LL128, one shot    the same over lines, s read again from residual_output
//   LL, LL128, bulk    two shots: rank p sums the rows of chunk p and sends the sums; every rank adds the residual to
//                      all rows and normalises them, so no more is sent than an all-reduce sends
//
// Why output may be input, and residual_output may be residual: a row is only read by the block that writes it, each
// element by one thread, and the block meets between reading and writing the output.
#pragma once

#include "algorithm/cuda/bulk.cuh"
#include "algorithm/cuda/ll128.cuh"
#include "algorithm/cuda/norm_rows.cuh"

namespace tutti::cuda {

// Stores s of 16 bytes (or less, in lines) of the sum.
template <class Lanes>
struct AddResidual {
  const AddRmsNormArgs& args;
  TUTTI_DEVICE void operator()(std::size_t at, const Vec16& sum, std::size_t bytes) const {
    const Vec16 s = add<Lanes>(sum, device::load_user(args.residual + at, bytes));
    device::store_user(args.residual_output + at, s, bytes);
  }
};

TUTTI_DEVICE TwoShotArgs two_shot_of(const AddRmsNormArgs& args) {
  TwoShotArgs two_shot;
  two_shot.input = args.input;
  two_shot.bytes = args.rows * args.row_bytes;
  two_shot.chunk_bytes = args.chunk_rows * args.row_bytes;
  two_shot.block_bytes = args.block_rows * args.row_bytes;
  two_shot.piece_bytes = args.piece_bytes;
  two_shot.fingerprint = args.fingerprint;
  return two_shot;
}

// What a thread of the one-shot kernel over LL keeps of its vectors.
template <class Team>
struct HeldRows {
  static constexpr int kHere = kLanesHere<Team>;
  static constexpr int kMostTasks = kHeldSegments / (Team::kOnDevice ? kNormThreads / kLanes : 1);
  Vec16 values[kMostTasks * kHere];
  Vec16 weights[kMostTasks * kHere];
  TUTTI_DEVICE const Vec16& value(int i, int l, const RowVector& /*at*/) const { return values[i * kHere + l]; }
  TUTTI_DEVICE const Vec16& weight(int i, int l, const RowVector& /*at*/) const { return weights[i * kHere + l]; }
};

template <int N, class Lanes, class Team>
TUTTI_DEVICE void ll_add_rms_norm_of(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                                     NormScratch& scratch) {
  using Held = HeldRows<Team>;
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  if (team.is_worker()) {
    const int size = group_size<N>(world);
    const std::uint32_t flag = device::ll_flag(call.sequence());
    const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
    const int tasks = static_cast<int>(args.block_rows) * args.segments;
    Held held;
    // Items count the vectors of whole segments; both phases' slots are used.
    const auto item_of = [&](int task, int l) { return static_cast<std::size_t>(task * kLanes + lane_of(team, l)); };
    for_warp_tasks<Held::kMostTasks>(team, tasks, [&](int i, int task) {
      for (int l = 0; l < Held::kHere; ++l) {
        const RowVector at = row_vector(team, args, task, lane_of(team, l));
        if (!at.exists) continue;
        const Vec16 v = device::load_user(args.input + at.row * args.row_bytes + at.column, 16);
        held.values[i * Held::kHere + l] = v;
        const std::size_t item = item_of(task, l);
        TUTTI_UNROLL
        for (int k = 1; k < N; ++k) {
          if (k >= size) break;
          const int peer = rank_after(world, k);
          const int phase = item < kLLItems ? 0 : 1;
          device::ll_store(call.ll(peer, phase, world.rank) + item % kLLItems, kLLItems, v, flag);
        }
      }
    });
    bool ok = true;  // a thread whose wait has ended without its data still meets the others
    for_warp_tasks<Held::kMostTasks>(team, tasks, [&](int i, int task) {
      for (int l = 0; l < Held::kHere; ++l) {
        const RowVector at = row_vector(team, args, task, lane_of(team, l));
        if (!at.exists || !ok) continue;
        const std::size_t offset = at.row * args.row_bytes + at.column, item = item_of(task, l);
        const Vec16 residual = device::load_user(args.residual + offset, 16);
        held.weights[i * Held::kHere + l] = device::load_user(args.weight + at.column, 16);
        Vec16 v[N];
        ok = ll_receive<N>(world, call, item < kLLItems ? 0 : 1, item % kLLItems, peers, v);
        put_own<N>(v, world.rank, held.values[i * Held::kHere + l]);
        const Vec16 s = add<Lanes>(ReduceSum<Lanes>::reduce(v, size, ReduceSpec{}), residual);
        device::store_user(args.residual_output + offset, s, 16);
        held.values[i * Held::kHere + l] = s;
      }
    });
    norm_segments<Held::kMostTasks, Lanes>(team, args, 0, tasks, scratch, held);
  }
  call.check_headers();
  call.leave();
}

// One shot over lines: 2 * kLL128Lines of them a peer, those of both phases.
template <int N, class Lanes, class Team>
TUTTI_DEVICE void ll128_add_rms_norm_of(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                                        NormScratch& scratch) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  if (team.is_worker()) {
    const int size = group_size<N>(world);
    const std::uint64_t flag = device::ll128_flag(call.sequence());
    const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
    const Range mine = part(args.rows * args.row_bytes, args.block_rows * args.row_bytes, team.block());
    constexpr std::size_t kUnits = kLL128Lines * device::kLineUnits;
    for_units(team, mine.bytes(), [&](std::size_t unit, bool active) {
      if (!active) return true;
      const std::size_t at = mine.begin + device::unit_offset(unit), bytes = bytes_of_unit(unit, mine.bytes());
      const Vec16 v = device::load_user(args.input + at, bytes);
      TUTTI_UNROLL
      for (int k = 1; k < N; ++k) {
        if (k >= size) break;
        const int peer = rank_after(world, k);
        device::ll128_store(call.ll128(peer, unit < kUnits ? 0 : 1, world.rank), unit % kUnits, v, flag);
      }
      return true;
    });
    const AddResidual<Lanes> sink{args};
    for_units(team, mine.bytes(), [&](std::size_t unit, bool active) {
      const std::size_t at = mine.begin + device::unit_offset(unit);
      const std::size_t bytes = active ? bytes_of_unit(unit, mine.bytes()) : 0;
      Vec16 v[N];
      const Vec16 own = bytes > 0 ? device::load_user(args.input + at, bytes) : Vec16{};
      if (!ll128_receive<N>(world, call, unit < kUnits ? 0 : 1, unit % kUnits, active ? peers : 0, v)) return false;
      put_own<N>(v, world.rank, own);
      if (bytes > 0) sink(at, ReduceSum<Lanes>::reduce(v, size, ReduceSpec{}), bytes);
      return true;
    });
    team.sync_workers();
    norm_stored_rows<Lanes>(team, args, scratch);
  }
  call.check_headers();
  call.leave();
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void ll_two_shot_add_rms_norm_of(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                                              NormScratch& scratch) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  if (team.is_worker()) {
    ll_two_shot_data<N, ReduceSum<Lanes>>(team, world, call, two_shot_of(args), AddResidual<Lanes>{args});
    team.sync_workers();
    norm_stored_rows<Lanes>(team, args, scratch);
  }
  call.check_headers();
  call.leave();
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void ll128_two_shot_add_rms_norm_of(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                                                 NormScratch& scratch) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  if (team.is_worker()) {
    ll128_two_shot_data<N, ReduceSum<Lanes>>(team, world, call, two_shot_of(args), AddResidual<Lanes>{args});
    team.sync_workers();
    norm_stored_rows<Lanes>(team, args, scratch);
  }
  call.check_headers();
  call.leave();
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void bulk_add_rms_norm_of(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                                       NormScratch& scratch) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  call.check_headers();  // the workers go on meanwhile
  const AddResidual<Lanes> sink{args};
  bulk_two_shot_data<N, ReduceSum<Lanes>>(
      team, world, call, two_shot_of(args), sink, [&](std::size_t begin, const std::byte* from, std::size_t bytes) {
        if (!team.is_worker()) return;
        const auto stride = static_cast<std::size_t>(team.workers()) * 16;
        for (std::size_t at = static_cast<std::size_t>(team.worker()) * 16; at < bytes; at += stride) {
          sink(begin + at, *reinterpret_cast<const Vec16*>(from + at), 16);
        }
      });
  if (team.is_worker()) {
    team.sync_workers();
    norm_stored_rows<Lanes>(team, args, scratch);
  }
  call.leave();
}

template <NormPattern kPattern, class Lanes, class Team>
struct AddRmsNorm {
  const Team& team;
  const DeviceWorld& world;
  const AddRmsNormArgs& args;
  NormScratch& scratch;
  template <int N>
  TUTTI_DEVICE void operator()() const {
    if constexpr (kPattern == NormPattern::kLL) ll_add_rms_norm_of<N, Lanes>(team, world, args, scratch);
    if constexpr (kPattern == NormPattern::kLL128) ll128_add_rms_norm_of<N, Lanes>(team, world, args, scratch);
    if constexpr (kPattern == NormPattern::kLLTwoShot)
      ll_two_shot_add_rms_norm_of<N, Lanes>(team, world, args, scratch);
    if constexpr (kPattern == NormPattern::kLL128TwoShot) {
      ll128_two_shot_add_rms_norm_of<N, Lanes>(team, world, args, scratch);
    }
    if constexpr (kPattern == NormPattern::kBulk) bulk_add_rms_norm_of<N, Lanes>(team, world, args, scratch);
  }
};
template <NormPattern kPattern, class Lanes, class Team>
TUTTI_DEVICE void add_rms_norm(const Team& team, const DeviceWorld& world, const AddRmsNormArgs& args,
                               NormScratch& scratch) {
  with_group_size(world.size, AddRmsNorm<kPattern, Lanes, Team>{team, world, args, scratch});
}

}  // namespace tutti::cuda
