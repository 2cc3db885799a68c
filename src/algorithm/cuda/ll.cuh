// Exchanges and two-shot all-reduce over LL packets: one trip a phase, half of the wire is flags. For small messages.
//
// One-shot (an exchange): every rank sends all of its part to the receivers. An all-reduce of S bytes takes 2 (n-1) S
// bytes out of each rank and one trip. Two-shot: rank p gets the p-th chunk of all, reduces it and sends the result to
// all: 4 (n-1)/n S bytes, two trips.
//
// The packets of up to four peers are polled together: the loads of one item are in flight at the same time. Each item
// is read and written by one thread, so the output may be the input.
#pragma once

#include "algorithm/cuda/block_call.cuh"
#include "algorithm/cuda/exchange_args.h"
#include "algorithm/cuda/group_size.cuh"
#include "device/cuda/reducers.cuh"

namespace tutti::cuda {

using device::Pair64;

// Ranks of a group of N that are polled together. Their packets are in registers until all have come: of more ranks
// they would not fit, beside what else a kernel holds.
template <int N>
inline constexpr int kPolledTogether = N < 4 ? N : 4;

// Polls the ranks of `mask`, kTogether at a time, and calls each(p, item) for every p < N in order, once arrived(item)
// of item = load(p); for ranks that are not in `mask` the item is undefined. False if a wait has ended without its
// data; then each() has not been called for the ranks polled with it, nor for those after them.
template <int N, int kTogether, class Team, class Load, class Arrived, class Each>
TUTTI_DEVICE bool poll_ranks(const DeviceWorld& world, const BlockCall<Team>& call, std::uint32_t mask, Load load,
                             Arrived arrived, Each each) {
  device::Awaited awaited = call.awaited(world.rank);
  bool came = true;
  TUTTI_UNROLL
  for (int first = 0; first < N; first += kTogether) {
    decltype(load(0)) items[kTogether];
    const auto ready = [&] {
      TUTTI_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (first + j < N && (mask >> (first + j) & 1) != 0) items[j] = load(first + j);
      }
      bool all = true;
      TUTTI_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (first + j < N && (mask >> (first + j) & 1) != 0 && !arrived(items[j])) {
          all = false;
          awaited.peer = first + j;
        }
      }
      return all;
    };
    came = came && device::wait_until(world.control, awaited, ready);
    if (!came) {
      call.miss();
      break;
    }
    // After the wait: in it, what is made of the items would need registers of its own.
    TUTTI_UNROLL
    for (int j = 0; j < kTogether; ++j) {
      if (first + j < N) each(first + j, items[j]);
    }
  }
  return came;
}
// Waits for item `i` of phase `phase` from every rank of `mask`; each(p, v) takes rank p's, in order.
template <int N, class Team, class Each>
TUTTI_DEVICE bool ll_receive_each(const DeviceWorld& world, const BlockCall<Team>& call, int phase, std::size_t i,
                                  std::uint32_t mask, Each each) {
  const Pair64* slots = call.ll(world.rank, phase, 0) + i;
  constexpr std::size_t kStride = kLLSlotBytes / sizeof(Pair64);
  const std::uint32_t flag = device::ll_flag(call.sequence());
  return poll_ranks<N, kPolledTogether<N>>(
      world, call, mask,
      [&](int p) { return device::ll_load(slots + static_cast<std::size_t>(p) * kStride, kLLItems); },
      [&](const device::LLItem& item) { return device::ll_arrived(item, flag); },
      [&](int p, const device::LLItem& item) {
        if (mask >> p & 1) each(p, device::ll_data(item));
      });
}
// The same; v[p] is rank p's.
template <int N, class Team>
TUTTI_DEVICE bool ll_receive(const DeviceWorld& world, const BlockCall<Team>& call, int phase, std::size_t i,
                             std::uint32_t mask, Vec16* v) {
  return ll_receive_each<N>(world, call, phase, i, mask, [&](int p, const Vec16& data) { v[p] = data; });
}

// This block's part of what goes to each peer, and of what stays here (kKeep; without arithmetic). A part that goes to
// several places is loaded once.
template <bool kKeep, class Team, class Own>
TUTTI_DEVICE void ll_send(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                          const ExchangeArgs& args, Own own) {
  const std::uint32_t flag = device::ll_flag(call.sequence());
  const std::size_t begin = args.block_bytes * static_cast<std::size_t>(team.block());
  const auto items = args.block_bytes / 16;
  [[maybe_unused]] std::byte* const kept = kKeep ? kept_part(args, world.rank) : nullptr;
  for (auto i = static_cast<std::size_t>(team.worker()); i < items; i += static_cast<std::size_t>(team.workers())) {
    const std::size_t at = begin + i * 16;
    const std::byte* loaded = nullptr;
    Vec16 v{{0, 0, 0, 0}};
    for (int k = 1; k < world.size; ++k) {
      const int peer = rank_after(world, k);
      if (at >= args.send_bytes[peer]) continue;
      if (args.send[peer] != loaded) {
        loaded = args.send[peer];
        v = own(device::load_user(loaded + at, args.send_bytes[peer] - at));
      }
      device::ll_store(call.ll(peer, 0, world.rank) + i, kLLItems, v, flag);
    }
    if constexpr (kKeep) {
      // Last: peers wait for theirs.
      if (kept == nullptr || at >= args.receive_bytes[world.rank]) continue;
      const std::byte* const own_part = args.send[world.rank];
      const std::size_t left = args.receive_bytes[world.rank] - at;
      if (own_part != loaded) v = device::load_user(own_part + at, left);
      device::store_user(kept + at, v, left);
    }
  }
}

// Every collective without arithmetic.
template <class Team>
TUTTI_DEVICE void ll_copy(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const bool sends = call.begin() && team.is_worker();
  if (sends) ll_send<true>(team, world, call, args, [](const Vec16& v) { return v; });
  if (!call.goes_on()) return;
  if (team.is_worker()) {
    const std::size_t begin = args.block_bytes * static_cast<std::size_t>(team.block());
    const auto items = args.block_bytes / 16;
    for (auto i = static_cast<std::size_t>(team.worker()); i < items; i += static_cast<std::size_t>(team.workers())) {
      const std::size_t at = begin + i * 16;
      std::uint32_t mask = 0;
      for (int p = 0; p < world.size; ++p) {
        if (p != world.rank && at < args.receive_bytes[p]) mask |= 1u << p;
      }
      Vec16 v[kMaxRanks];
      if (mask == 0) continue;
      if (!ll_receive<kMaxRanks>(world, call, 0, i, mask, v)) break;
      TUTTI_UNROLL
      for (int p = 0; p < kMaxRanks; ++p) {
        if (mask >> p & 1) device::store_user(args.receive[p] + at, v[p], args.receive_bytes[p] - at);
      }
    }
  }
  call.check_headers_and_go();
  call.leave();
}

// Every collective that reduces, in one shot: all ranks that have an output reduce it by themselves.
template <class R, class Team>
TUTTI_DEVICE void ll_reduce(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const bool sends = call.begin() && team.is_worker();
  if (sends) ll_send<false>(team, world, call, args, [&](const Vec16& v) { return R::own(v, args.spec); });
  if (!call.goes_on()) return;
  if (team.is_worker()) {
    const Range mine = part(args.output_bytes, args.block_bytes, team.block());
    const std::uint32_t mask = ((1u << world.size) - 1) & ~(1u << world.rank);
    std::size_t i = static_cast<std::size_t>(team.worker());
    for (std::size_t at = mine.begin + i * 16; at < mine.end; at += static_cast<std::size_t>(team.workers()) * 16) {
      const std::size_t left = args.output_bytes - at;
      Vec16 v[kMaxRanks];
      const Vec16 own = R::own(device::load_user(args.send[world.rank] + at, left), args.spec);
      if (!ll_receive<kMaxRanks>(world, call, 0, i, mask, v)) break;
      put_own<kMaxRanks>(v, world.rank, own);
      device::store_user(args.output + at, R::reduce(v, world.size, args.spec), left);
      i += static_cast<std::size_t>(team.workers());
    }
  }
  call.check_headers_and_go();
  call.leave();
}

// What this block has of the chunk that rank p of an all-reduce sums up.
template <class Team>
TUTTI_DEVICE Range two_shot_range(const Team& team, const TwoShotArgs& args, int p) {
  return part(part(args.bytes, args.chunk_bytes, p), args.block_bytes, team.block());
}

// The first shot of an all-reduce. Workers only, and so the rest of it.
template <int N, class R, class Team>
TUTTI_DEVICE void ll_two_shot_send(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                   const TwoShotArgs& args) {
  const int size = group_size<N>(world);
  const std::uint32_t flag = device::ll_flag(call.sequence());
  const auto first = static_cast<std::size_t>(team.worker()), step = static_cast<std::size_t>(team.workers());
  for (std::size_t i = first; i < args.block_bytes / 16; i += step) {
    TUTTI_UNROLL
    for (int k = 1; k < N; ++k) {
      if (k >= size) break;
      const int peer = rank_after(world, k);
      const Range range = two_shot_range(team, args, peer);
      const std::size_t at = range.begin + i * 16;
      if (at >= range.end) continue;
      const Vec16 v = R::own(device::load_user(args.input + at, args.bytes - at), args.spec);
      device::ll_store(call.ll(peer, 0, world.rank) + i, kLLItems, v, flag);
    }
  }
}

// What comes of it, and the second shot: sink(offset, vector, bytes left) takes the sums. False if a wait has ended
// without its data.
template <int N, class R, class Team, class Sink>
TUTTI_DEVICE bool ll_two_shot_receive(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                      const TwoShotArgs& args, Sink sink) {
  const int size = group_size<N>(world);
  const std::uint32_t flag = device::ll_flag(call.sequence());
  const auto first = static_cast<std::size_t>(team.worker()), step = static_cast<std::size_t>(team.workers());
  const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
  const auto range_of = [&](int p) { return two_shot_range(team, args, p); };
  const Range mine = range_of(world.rank);
  for (std::size_t i = first; mine.begin + i * 16 < mine.end; i += step) {
    const std::size_t at = mine.begin + i * 16;
    Vec16 v[N];
    const Vec16 own = R::own(device::load_user(args.input + at, args.bytes - at), args.spec);
    if (!ll_receive<N>(world, call, 0, i, peers, v)) return false;
    put_own<N>(v, world.rank, own);
    const Vec16 sum = R::reduce(v, size, args.spec);
    TUTTI_UNROLL
    for (int p = 0; p < N; ++p) {
      if (p < size && p != world.rank) device::ll_store(call.ll(p, 1, world.rank) + i, kLLItems, sum, flag);
    }
    sink(at, sum, args.bytes - at);
  }
  for (std::size_t i = first; i < args.block_bytes / 16; i += step) {
    std::uint32_t mask = 0;
    TUTTI_UNROLL
    for (int p = 0; p < N; ++p) {
      if (p < size && p != world.rank && range_of(p).begin + i * 16 < range_of(p).end) mask |= 1u << p;
    }
    const bool came = ll_receive_each<N>(world, call, 1, i, mask, [&](int p, const Vec16& sum) {
      const std::size_t at = range_of(p).begin + i * 16;
      sink(at, sum, args.bytes - at);
    });
    if (!came) return false;
  }
  return true;
}

template <int N, class R, class Team>
TUTTI_DEVICE void ll_two_shot_of(const Team& team, const DeviceWorld& world, const TwoShotArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const bool sends = call.begin() && team.is_worker();
  if (sends) ll_two_shot_send<N, R>(team, world, call, args);
  if (!call.goes_on()) return;
  if (team.is_worker()) {
    ll_two_shot_receive<N, R>(team, world, call, args, [&](std::size_t at, const Vec16& v, std::size_t left) {
      device::store_user(args.output + at, v, left);
    });
  }
  call.check_headers_and_go();
  call.leave();
}

template <class R, class Team>
TUTTI_DEVICE void ll_two_shot(const Team& team, const DeviceWorld& world, const TwoShotArgs& args) {
  with_group_size(world.size, [&]<int N>() { ll_two_shot_of<N, R>(team, world, args); });
}

}  // namespace tutti::cuda
