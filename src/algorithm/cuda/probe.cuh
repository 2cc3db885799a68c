// The test of a pair of ranks before their memory is trusted: each sends known data to each other one by the bulk
// protocol and by LL128 lines, and checks what arrives. One block. The result is a bit for each peer in
// RankState::probe: bit p: the data of rank p came whole; bit 32 + p: its lines of 128 bytes did.
//
// Bounded by the deadline of every wait. Sender and receiver are one kernel, so a pair in which one direction works and
// the other does not ends too.
#pragma once

#include "algorithm/cuda/team.cuh"
#include "channel/cuda/device_world.h"
#include "channel/cuda/probe_args.h"
#include "tutti/device/packets.cuh"

namespace tutti::cuda {

// Word i of the data that `src` sends to `dst`.
TUTTI_DEVICE std::uint64_t probe_word(std::uint64_t round, int src, int dst, std::size_t i) {
  const std::uint64_t x =
      (round << 48 ^ static_cast<std::uint64_t>(src) << 40 ^ static_cast<std::uint64_t>(dst) << 32 ^ i) *
      0x9e3779b97f4a7c15ULL;
  return x ^ x >> 31;
}

inline constexpr std::size_t kProbeWords = kProbeBytes / 2 / 8;    // the first half is bulk data
inline constexpr std::size_t kProbeLines = kProbeBytes / 2 / 128;  // the second half lines

// A wait of the probe: not wait_until(), because a failure here is no failure of the group.
template <class Ready>
TUTTI_DEVICE bool probe_wait(std::uint64_t timeout_ns, Ready&& ready) {
  const std::uint64_t start = device::clock_ns();
  for (std::uint32_t polls = 1; !ready(); ++polls) {
    if (polls % 256 == 0 && device::clock_ns() - start > timeout_ns) return false;
#if !defined(__CUDA_ARCH__)
    std::this_thread::yield();
#endif
  }
  return true;
}

// The flag of the line that this lane has loaded a unit of.
TUTTI_DEVICE std::uint64_t line_flag(const device::Pair64& pair) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(0xffu << (threadIdx.x & 24), pair.hi, static_cast<int>(threadIdx.x & 31) | 7);
#else
  return pair.hi;  // not used: the host does not store lines whole
#endif
}

// Every line carries its round's words; a line whose flag has come and whose words have not is torn. Rounds are not
// acknowledged: a reader may skip some, but what it sees must be whole.
template <class Team, class Lines>
TUTTI_DEVICE std::uint64_t probe_lines(const Team& team, const DeviceWorld& world, const ProbeArgs& args, Lines lines,
                                       std::uint64_t good) {
  constexpr int kRounds = 32;
  const std::size_t units = kProbeLines * device::kLineUnits;
  const auto step = static_cast<std::size_t>(team.workers());
  bool whole[device::kMaxRanks];
  for (int p = 0; p < device::kMaxRanks; ++p) whole[p] = true;
  if (team.is_worker()) {
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t flag = args.round * kRounds + static_cast<std::uint64_t>(round) + 1;
      for (auto u = static_cast<std::size_t>(team.worker()); u < units; u += step) {
        const device::Vec16 v = device::to_vec(device::Pair64{flag * 3 + u, flag * 5 + u});
        for (int p = 0; p < world.size; ++p) {
          if (p != world.rank) device::ll128_store(lines(p, world.rank), u, v, flag);
        }
      }
      for (auto u = static_cast<std::size_t>(team.worker()); u < units; u += step) {
        for (int p = 0; p < world.size; ++p) {
          if (p == world.rank || (good >> p & 1) == 0) continue;
          const device::Pair64 pair = device::ll128_load(lines(world.rank, p), u).pair;
          const std::uint64_t theirs = line_flag(pair);
          const bool blank = theirs == 0 && pair.lo == 0;
          const bool last = u % device::kLineUnits == device::kLineUnits - 1;
          const bool right = pair.lo == theirs * 3 + u && (last || pair.hi == theirs * 5 + u);
          if (!blank && !right) whole[p] = false;
        }
      }
    }
  }
  std::uint64_t result = 0;
  for (int p = 0; p < world.size; ++p) {
    if (!team.any(!whole[p])) result |= std::uint64_t{1} << p;
  }
  return result & good;
}

template <class Team>
TUTTI_DEVICE void probe(const Team& team, const DeviceWorld& world, const ProbeArgs& args) {
  const int me = world.rank;
  const ScratchLayout& layout = world.layout;
  const auto signal = [&](int owner, int src) {
    return reinterpret_cast<std::uint64_t*>(world.scratch[owner] + layout.probe_signal(0, src));
  };
  const auto lines = [&](int owner, int src) {
    return reinterpret_cast<device::Pair64*>(world.scratch[owner] + layout.probe(src) + kProbeBytes / 2);
  };
  const auto step = static_cast<std::size_t>(team.workers());
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == me || !team.is_worker()) continue;
    auto* words = reinterpret_cast<std::uint64_t*>(world.scratch[peer] + layout.probe(me));
    for (auto i = static_cast<std::size_t>(team.worker()); i < kProbeWords; i += step) {
      words[i] = probe_word(args.round, me, peer, i);
    }
  }
  team.sync();
  team.for_peers(me, world.size, [&](int peer) { device::store_release(signal(peer, me), args.round); });
  std::uint64_t good = 0;
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer == me) continue;
    bool ok = true;
    if (team.is_first_control()) {
      ok = probe_wait(args.timeout_ns, [&] { return device::load_acquire(signal(me, peer)) == args.round; });
    }
    if (team.any(!ok)) continue;
    const auto* words = reinterpret_cast<const std::uint64_t*>(world.scratch[me] + layout.probe(peer));
    if (team.is_worker()) {
      for (auto i = static_cast<std::size_t>(team.worker()); i < kProbeWords; i += step) {
        ok = words[i] == probe_word(args.round, peer, me, i) && ok;
      }
    }
    if (!team.any(!ok)) good |= std::uint64_t{1} << peer;
  }
  if (args.check_lines != 0) good |= probe_lines(team, world, args, lines, good) << 32;
  if (team.is_first_control()) world.state->probe = good;
}

}  // namespace tutti::cuda
