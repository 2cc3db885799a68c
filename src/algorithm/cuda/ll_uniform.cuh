// The exchanges of ll.cuh where all parts are equal and lie one after another: the calls of a model's small tensors.
// The same packets in the same slots, so a rank whose memory does not allow it may run the general kernel.
//
// What a call waits for, in order: parameters, the block's sequence number and, at the same time, the first input; the
// packets' trip; nothing else. So the first inputs are loaded before the sequence number is known, those for all peers
// at the same time.
#pragma once

#include "algorithm/cuda/ll.cuh"

namespace tutti::cuda {

// Own(v) is what this rank contributes of its input; sink(offset, v) takes all ranks' parts of an item. N is the size
// of the group, known when compiled: the code of a small call should fit the caches of instructions.
template <int N, class Team, class Own, class Sink>
TUTTI_DEVICE void ll_uniform(const Team& team, const DeviceWorld& world, const UniformArgs& args, Own own, Sink sink) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const std::size_t begin = args.block_bytes * static_cast<std::size_t>(team.block());
  const std::size_t end = begin + args.block_bytes < args.bytes ? begin + args.block_bytes : args.bytes;
  const auto step = static_cast<std::size_t>(team.workers());
  std::size_t i = static_cast<std::size_t>(team.worker());
  const std::byte* mine = args.input + args.in_stride * static_cast<std::size_t>(world.rank);
  const std::size_t first_at = begin + i * 16;
  const bool works = team.is_worker() && first_at < end;
  Vec16 parts[N] = {};  // parts[k]: of the k-th rank after this one; the first is this rank's, and all of an all-gather
  const auto load = [&](std::size_t at) {
    TUTTI_UNROLL
    for (int k = 0; k < N; ++k) {
      if (k != 0 && args.in_stride == 0) break;
      const std::byte* from = args.input + args.in_stride * static_cast<std::size_t>(rank_after(world, k));
      parts[k] = device::load_user(from + at, args.bytes - at);
    }
  };
  if (works) load(first_at);
  const bool sends = call.begin() && works;
  Vec16 first{};
  if (sends) {
    first = own(parts[0]);
    const std::uint32_t flag = device::ll_flag(call.sequence());
    for (std::size_t at = first_at; at < end; at += step * 16, i += step) {
      if (at != first_at) load(at);
      const Vec16 to_all = own(parts[0]);
      TUTTI_UNROLL
      for (int k = 1; k < N; ++k) {
        const Vec16 v = args.in_stride != 0 ? own(parts[k]) : to_all;
        device::ll_store(call.ll(rank_after(world, k), 0, world.rank) + i, kLLItems, v, flag);
      }
    }
  }
  if (!call.goes_on()) return;
  if (works) {
    const std::uint32_t peers = ((1u << N) - 1) & ~(1u << world.rank);
    i = static_cast<std::size_t>(team.worker());
    for (std::size_t at = first_at; at < end; at += step * 16, i += step) {
      Vec16 v[N];
      const Vec16 contribution = at == first_at ? first : own(device::load_user(mine + at, args.bytes - at));
      if (!ll_receive<N>(world, call, 0, i, peers, v)) break;
      put_own<N>(v, world.rank, contribution);
      sink(at, v);
    }
  }
  call.check_headers_and_go();
  call.leave();
}

// N is the group's size, 2 or more.
template <class R, int N, class Team>
TUTTI_DEVICE void ll_uniform_reduce(const Team& team, const DeviceWorld& world, const UniformArgs& a) {
  ll_uniform<N>(
      team, world, a, [&](const Vec16& v) { return R::own(v, a.spec); },
      [&](std::size_t at, const Vec16* v) {
        device::store_user(a.output + at, R::reduce(v, N, a.spec), a.bytes - at);
      });
}
template <int N, class Team>
TUTTI_DEVICE void ll_uniform_copy(const Team& team, const DeviceWorld& world, const UniformArgs& a) {
  ll_uniform<N>(
      team, world, a, [](const Vec16& v) { return v; },
      [&](std::size_t at, const Vec16* v) {
        TUTTI_UNROLL
        for (int p = 0; p < N; ++p) {
          device::store_user(a.output + a.out_stride * static_cast<std::size_t>(p) + at, v[p], a.bytes - at);
        }
      });
}

}  // namespace tutti::cuda
