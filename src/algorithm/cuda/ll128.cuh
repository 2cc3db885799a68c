// The algorithms of ll.cuh over LL128 lines: 120 of 128 bytes are data. For medium messages, over NVLink.
//
// Threads work on units of 16 bytes; 8 neighbouring lanes make a line. All lanes of a warp stay together in the loops,
// idle ones included, because a line is stored by one instruction and its flag is asked for by a vote. A line holds 15
// words of 8 bytes, so elements of 16 bytes would straddle lanes: complex128 does not come here.
#pragma once

#include "algorithm/cuda/ll.cuh"

namespace tutti::cuda {

inline constexpr std::size_t kLL128Stride = kLL128SlotBytes / sizeof(Pair64);

// Calls f(unit, active) for the units of `bytes`, all lanes of a warp together.
template <class Team, class F>
TUTTI_DEVICE void for_units(const Team& team, std::size_t bytes, F f) {
  const std::size_t units = device::units_for(bytes);
  const auto step = static_cast<std::size_t>(team.workers());
  const std::size_t rounded = Team::kOnDevice ? (units + 31) / 32 * 32 : units;
  for (auto unit = static_cast<std::size_t>(team.worker()); unit < rounded; unit += step) {
    if (!f(unit, unit < units)) return;
  }
}

// Bytes of a message that belong to unit `unit`: none past the end.
TUTTI_DEVICE std::size_t bytes_of_unit(std::size_t unit, std::size_t bytes) {
  const std::size_t at = device::unit_offset(unit), most = device::unit_bytes(unit);
  return at >= bytes ? 0 : bytes - at < most ? bytes - at : most;
}

// Waits for a unit of every rank of `mask` (equal on all lanes of a line), some ranks at a time, as poll_ranks();
// each(p, v) takes rank p's, in order. All lanes of the warp; false on all or none.
template <int N, class Team, class Each>
TUTTI_DEVICE bool ll128_receive_each(const DeviceWorld& world, const BlockCall<Team>& call, int phase, std::size_t unit,
                                     std::uint32_t mask, Each each) {
  constexpr int kTogether = kPolledTogether<N>;
  const Pair64* slots = call.ll128(world.rank, phase, 0);
  const std::uint64_t flag = device::ll128_flag(call.sequence());
  device::Awaited awaited = call.awaited(world.rank);
  std::uint64_t started = 0;
  TUTTI_UNROLL
  for (int first = 0; first < N; first += kTogether) {
    device::LL128Item items[kTogether];
    // Not wait_until(): the lanes of a warp must leave the loop together.
    for (std::uint32_t polls = 1;; ++polls) {
      TUTTI_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        const Pair64* const lines = slots + static_cast<std::size_t>(first + j) * kLL128Stride;
        if (mask >> (first + j) & 1) items[j] = device::ll128_load(lines, unit);
      }
      bool all = true;
      TUTTI_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if ((mask >> (first + j) & 1) != 0 && !device::ll128_arrived(unit, items[j], flag)) {
          all = false;
          awaited.peer = first + j;
        }
      }
      if (device::all_lanes(all)) break;
      if (polls % device::kPollsPerLook == 0 &&
          !device::all_lanes(all || !device::give_up(world.control, awaited, started))) {
        return false;
      }
#if !defined(__CUDA_ARCH__)
      std::this_thread::yield();
#endif
    }
    TUTTI_UNROLL
    for (int j = 0; j < kTogether; ++j) {
      if (mask >> (first + j) & 1) each(first + j, device::to_vec(items[j].pair));
    }
  }
  return true;
}
// The same; v[p] is rank p's.
template <int N, class Team>
TUTTI_DEVICE bool ll128_receive(const DeviceWorld& world, const BlockCall<Team>& call, int phase, std::size_t unit,
                                std::uint32_t mask, Vec16* v) {
  return ll128_receive_each<N>(world, call, phase, unit, mask, [&](int p, const Vec16& data) { v[p] = data; });
}

// As ll_send(). What stays here is stored first: after the peers' lines it would cost the most spilled registers.
template <int N, bool kKeep, class Team, class Own>
TUTTI_DEVICE void ll128_send(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                             const ExchangeArgs& args, Own own) {
  const int size = group_size<N>(world);
  const std::uint64_t flag = device::ll128_flag(call.sequence());
  [[maybe_unused]] std::byte* const kept = kKeep ? kept_part(args, world.rank) : nullptr;
  for_units(team, args.block_bytes, [&](std::size_t unit, bool active) {
    const std::byte* loaded = nullptr;
    Vec16 v{{0, 0, 0, 0}};
    if constexpr (kKeep) {
      const Range range = part(args.receive_bytes[world.rank], args.block_bytes, team.block());
      const std::size_t bytes = active && kept != nullptr ? bytes_of_unit(unit, range.bytes()) : 0;
      if (bytes > 0) {
        const std::size_t at = range.begin + device::unit_offset(unit);
        loaded = args.send[world.rank];
        v = device::load_user(loaded + at, bytes);
        device::store_user(kept + at, v, bytes);
      }
    }
    TUTTI_UNROLL
    for (int k = 1; k < N; ++k) {
      if (k >= size) break;
      const int peer = rank_after(world, k);
      const Range range = part(args.send_bytes[peer], args.block_bytes, team.block());
      if (!active || unit >= device::units_for(range.bytes())) continue;
      if (args.send[peer] != loaded) {
        loaded = args.send[peer];
        const std::size_t bytes = bytes_of_unit(unit, range.bytes());
        v = own(device::load_user(loaded + range.begin + device::unit_offset(unit), bytes));
      }
      device::ll128_store(call.ll128(peer, 0, world.rank), unit, v, flag);
    }
    return true;
  });
}

template <int N, class Team>
TUTTI_DEVICE void ll128_copy_of(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  const int size = group_size<N>(world);
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const bool sends = call.begin() && team.is_worker();
  if (sends) ll128_send<N, true>(team, world, call, args, [](const Vec16& v) { return v; });
  if (!call.goes_on()) return;
  if (team.is_worker()) {
    for_units(team, args.block_bytes, [&](std::size_t unit, bool active) {
      std::uint32_t mask = 0;
      for (int p = 0; p < N; ++p) {
        if (p >= size) break;
        const Range range = part(args.receive_bytes[p], args.block_bytes, team.block());
        if (active && p != world.rank && unit < device::units_for(range.bytes())) mask |= 1u << p;
      }
      Vec16 v[N];
      if (!ll128_receive<N>(world, call, 0, unit, mask, v)) {
        call.miss();
        return false;
      }
      TUTTI_UNROLL
      for (int p = 0; p < N; ++p) {
        if ((mask >> p & 1) == 0) continue;
        const Range range = part(args.receive_bytes[p], args.block_bytes, team.block());
        const std::size_t bytes = bytes_of_unit(unit, range.bytes());
        if (bytes > 0) device::store_user(args.receive[p] + range.begin + device::unit_offset(unit), v[p], bytes);
      }
      return true;
    });
  }
  call.check_headers_and_go();
  call.leave();
}

template <int N, class R, class Team>
TUTTI_DEVICE void ll128_reduce_of(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  const int size = group_size<N>(world);
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const bool sends = call.begin() && team.is_worker();
  if (sends) {
    ll128_send<N, false>(team, world, call, args, [&](const Vec16& v) { return R::own(v, args.spec); });
  }
  if (!call.goes_on()) return;
  if (team.is_worker()) {
    const Range mine = part(args.output_bytes, args.block_bytes, team.block());
    const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
    for_units(team, mine.bytes(), [&](std::size_t unit, bool active) {
      const std::size_t at = mine.begin + device::unit_offset(unit);
      const std::size_t bytes = active ? bytes_of_unit(unit, mine.bytes()) : 0;
      Vec16 v[N];
      const Vec16 own = bytes > 0 ? R::own(device::load_user(args.send[world.rank] + at, bytes), args.spec) : Vec16{};
      if (!ll128_receive<N>(world, call, 0, unit, active ? peers : 0, v)) {
        call.miss();
        return false;
      }
      put_own<N>(v, world.rank, own);
      if (bytes > 0) device::store_user(args.output + at, R::reduce(v, size, args.spec), bytes);
      return true;
    });
  }
  call.check_headers_and_go();
  call.leave();
}

// The first shot of an all-reduce. Workers only, and so the rest of it.
template <int N, class R, class Team>
TUTTI_DEVICE void ll128_two_shot_send(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                      const TwoShotArgs& args) {
  const int size = group_size<N>(world);
  const std::uint64_t flag = device::ll128_flag(call.sequence());
  for_units(team, args.block_bytes, [&](std::size_t unit, bool active) {
    TUTTI_UNROLL
    for (int k = 1; k < N; ++k) {
      if (k >= size) break;
      const int peer = rank_after(world, k);
      const Range range = two_shot_range(team, args, peer);
      if (!active || unit >= device::units_for(range.bytes())) continue;
      const std::size_t bytes = bytes_of_unit(unit, range.bytes());
      const std::byte* from = args.input + range.begin + device::unit_offset(unit);
      device::ll128_store(call.ll128(peer, 0, world.rank), unit, R::own(device::load_user(from, bytes), args.spec),
                          flag);
    }
    return true;
  });
}

// What comes of it, and the second shot: sink(offset, vector, bytes) takes the sums. False, on all lanes of a warp or
// none, if a wait has ended without its data.
template <int N, class R, class Team, class Sink>
TUTTI_DEVICE bool ll128_two_shot_receive(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                         const TwoShotArgs& args, Sink sink) {
  const int size = group_size<N>(world);
  const std::uint64_t flag = device::ll128_flag(call.sequence());
  const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
  const auto range_of = [&](int p) { return two_shot_range(team, args, p); };
  const Range mine = range_of(world.rank);
  bool ok = true;
  for_units(team, mine.bytes(), [&](std::size_t unit, bool active) {
    const std::size_t at = mine.begin + device::unit_offset(unit);
    const std::size_t bytes = active ? bytes_of_unit(unit, mine.bytes()) : 0;
    Vec16 v[N];
    const Vec16 own = bytes > 0 ? R::own(device::load_user(args.input + at, bytes), args.spec) : Vec16{};
    ok = ll128_receive<N>(world, call, 0, unit, active ? peers : 0, v);
    if (!ok) return false;
    put_own<N>(v, world.rank, own);
    const Vec16 sum = R::reduce(v, size, args.spec);
    for (int p = 0; p < N; ++p) {
      if (p < size && active && p != world.rank) device::ll128_store(call.ll128(p, 1, world.rank), unit, sum, flag);
    }
    if (bytes > 0) sink(at, sum, bytes);
    return true;
  });
  if (!ok) return false;
  for_units(team, args.block_bytes, [&](std::size_t unit, bool active) {
    std::uint32_t mask = 0;
    for (int p = 0; p < N; ++p) {
      if (p < size && active && p != world.rank && unit < device::units_for(range_of(p).bytes())) mask |= 1u << p;
    }
    ok = ll128_receive_each<N>(world, call, 1, unit, mask, [&](int p, const Vec16& sum) {
      const Range range = range_of(p);
      const std::size_t bytes = bytes_of_unit(unit, range.bytes());
      if (bytes > 0) sink(range.begin + device::unit_offset(unit), sum, bytes);
    });
    return ok;
  });
  return ok;
}

template <int N, class R, class Team>
TUTTI_DEVICE void ll128_two_shot_of(const Team& team, const DeviceWorld& world, const TwoShotArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  const bool sends = call.begin() && team.is_worker();
  if (sends) ll128_two_shot_send<N, R>(team, world, call, args);
  if (!call.goes_on()) return;
  if (team.is_worker()) {
    const auto store = [&](std::size_t at, const Vec16& v, std::size_t bytes) {
      device::store_user(args.output + at, v, bytes);
    };
    if (!ll128_two_shot_receive<N, R>(team, world, call, args, store)) call.miss();
  }
  call.check_headers_and_go();
  call.leave();
}

template <class Team>
TUTTI_DEVICE void ll128_copy(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  with_group_size(world.size, [&]<int N>() { ll128_copy_of<N>(team, world, args); });
}
template <class R, class Team>
TUTTI_DEVICE void ll128_reduce(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  with_group_size(world.size, [&]<int N>() { ll128_reduce_of<N, R>(team, world, args); });
}
template <class R, class Team>
TUTTI_DEVICE void ll128_two_shot(const Team& team, const DeviceWorld& world, const TwoShotArgs& args) {
  with_group_size(world.size, [&]<int N>() { ll128_two_shot_of<N, R>(team, world, args); });
}

}  // namespace tutti::cuda
