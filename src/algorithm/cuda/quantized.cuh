// Sums over 8-bit codes: half the bytes of bf16 on the wire, at the price of the error that docs/gpu.md states.
//
//   LL, one shot    every rank sends all of its tiles to all; each adds the decoded tiles of all ranks, its own decoded
//                   ones included, so that all get the same bits. Small messages.
//   LL and bulk,    rank p adds its chunk: its own numbers as they are and the decoded ones of its peers, encodes the
//   two shots       sums, and sends them to all; it stores what its peers will: the decoded sums
//
// Sums are in rank order, in fp32. Each number is read and written by one thread, so the output may be the input.
#pragma once

#include "algorithm/cuda/bulk.cuh"
#include "algorithm/cuda/ll.cuh"
#include "algorithm/cuda/tile_codec.cuh"

namespace tutti::cuda {

// The `index`-th tile of this block in chunk `chunk`; args.tiles if there is none.
template <class Team>
TUTTI_DEVICE std::size_t tile_of(const Team& team, const QuantizedArgs& args, int chunk, std::size_t index) {
  const std::size_t of_chunk = static_cast<std::size_t>(team.block()) * args.block_tiles + index;
  const std::size_t tile = static_cast<std::size_t>(chunk) * args.chunk_tiles + of_chunk;
  return index < args.block_tiles && of_chunk < args.chunk_tiles && tile < args.tiles ? tile : args.tiles;
}

template <class Lanes, class Team>
TUTTI_DEVICE void load_tile(const Team& team, const QuantizedArgs& args, std::size_t tile,
                            Sixteen (&values)[kLanesHere<Team>]) {
  for (int l = 0; l < kLanesHere<Team>; ++l) values[l] = load_sixteen<Lanes>(args, tile, lane_of(team, l));
}
// Of an encoded tile: what its receivers will decode.
template <class Lanes, class Team>
TUTTI_DEVICE void store_decoded(const Team& team, const QuantizedArgs& args, std::size_t tile,
                                const LaneCodes (&encoded)[kLanesHere<Team>]) {
  for (int l = 0; l < kLanesHere<Team>; ++l) {
    store_sixteen<Lanes>(args, tile, lane_of(team, l), decode(args, encoded[l].codes, encoded[l].scale));
  }
}

// sum = the first part, or sum + part.
TUTTI_DEVICE void accumulate(Sixteen& sum, const Sixteen& part, bool first) {
  TUTTI_UNROLL
  for (int i = 0; i < static_cast<int>(kLaneElements); ++i) sum.f[i] = first ? part.f[i] : sum.f[i] + part.f[i];
}

// A tile of this rank in the slots of a peer: `first` is its first item.
template <class Team>
TUTTI_DEVICE void ll_send_tile(const Team& team, const QuantizedArgs& args, Pair64* slot, std::size_t first,
                               const LaneCodes (&encoded)[kLanesHere<Team>], std::uint32_t flag) {
  for (int l = 0; l < kLanesHere<Team>; ++l) {
    const int lane = lane_of(team, l);
    device::ll_store(slot + first + static_cast<std::size_t>(lane), kLLItems, encoded[l].codes, flag);
    team.step(first);
    if (lane < args.scale_vectors) {
      device::ll_store(slot + first + static_cast<std::size_t>(kLanes + lane), kLLItems, encoded[l].scales, flag);
    }
  }
}
template <class Team>
TUTTI_DEVICE void ll_send_tile_to_all(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                      const QuantizedArgs& args, int phase, std::size_t first,
                                      const LaneCodes (&encoded)[kLanesHere<Team>]) {
  for (int k = 1; k < world.size; ++k) {
    ll_send_tile(team, args, call.ll(rank_after(world, k), phase, world.rank), first, encoded,
                 device::ll_flag(call.sequence()));
  }
}

// A lane's codes as they were read, and its scale: one word of a vector, which the flag beside it vouches for.
struct LLCodes {
  device::LLItem codes;
  std::uint64_t scale;
};
// each(p, codes, scale), for every p < N in order, with a lane's codes and scale from the ranks of `mask`; for others
// without.
template <int N, class Team, class Each>
TUTTI_DEVICE bool ll_receive_lane(const DeviceWorld& world, const BlockCall<Team>& call, const QuantizedArgs& args,
                                  int phase, std::size_t first, int lane, std::uint32_t mask, Each each) {
  const Pair64* const slots = call.ll(world.rank, phase, 0) + first;
  const Pair64* const codes = slots + lane;
  const int word = scale_word(args, lane);
  const auto* scales =
      reinterpret_cast<const std::uint64_t*>(slots + scale_vector(args, lane) + (word < 2 ? 0 : kLLItems)) + word % 2;
  constexpr std::size_t kStride = kLLSlotBytes / sizeof(Pair64);
  const std::uint32_t flag = device::ll_flag(call.sequence());
  constexpr int kTogether = 2;  // the sums that they are added to take 16 registers
  return poll_ranks<N, kTogether>(
      world, call, mask,
      [&](int p) {
        const std::size_t at = static_cast<std::size_t>(p) * kStride;
        return LLCodes{device::ll_load(codes + at, kLLItems), device::load_relaxed(scales + 2 * at)};
      },
      [&](const LLCodes& item) { return device::ll_arrived(item.codes, flag) && item.scale >> 32 == flag; },
      [&](int p, const LLCodes& item) {
        each(p, device::ll_data(item.codes), float_of(static_cast<std::uint32_t>(item.scale)));
      });
}
// The sum of a lane's numbers of all ranks, in rank order; own() is what this rank adds.
template <int N, class Team, class Own>
TUTTI_DEVICE bool ll_sum_lane(const DeviceWorld& world, const BlockCall<Team>& call, const QuantizedArgs& args,
                              std::size_t first, int lane, Own own, Sixteen& sum) {
  const int size = group_size<N>(world);
  const std::uint32_t peers = ((1u << size) - 1) & ~(1u << world.rank);
  return ll_receive_lane<N>(world, call, args, 0, first, lane, peers, [&](int p, const Vec16& codes, float scale) {
    if (p < size) accumulate(sum, p == world.rank ? own() : decode(args, codes, scale), p == 0);
  });
}

// Calls f(tile, first) for this warp's tiles of chunk `chunk`; `first` is the first item of a tile in its slots.
template <class Team, class F>
TUTTI_DEVICE void for_ll_tiles(const Team& team, const QuantizedArgs& args, int chunk, F f) {
  const auto vectors = static_cast<std::size_t>(tile_vectors(args.scale_vectors));
  for_warp_tasks<0>(team, static_cast<int>(args.block_tiles), [&](int /*i*/, int task) {
    const auto index = static_cast<std::size_t>(task);
    const std::size_t tile = tile_of(team, args, chunk, index);
    if (tile < args.tiles) f(tile, index * vectors);
  });
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void ll_quantized_of(const Team& team, const DeviceWorld& world, const QuantizedArgs& args) {
  constexpr int kHere = kLanesHere<Team>;
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  if (team.is_worker()) {
    for_ll_tiles(team, args, 0, [&](std::size_t tile, std::size_t first) {
      Sixteen values[kHere];
      LaneCodes mine[kHere];
      load_tile<Lanes>(team, args, tile, values);
      encode(team, args, values, mine);
      gather_scales(team, args, mine);
      ll_send_tile_to_all(team, world, call, args, 0, first, mine);
    });
    bool ok = true;  // a lane whose wait has ended without its data still meets the others
    for_ll_tiles(team, args, 0, [&](std::size_t tile, std::size_t first) {
      Sixteen values[kHere];
      LaneCodes mine[kHere];
      load_tile<Lanes>(team, args, tile, values);
      encode(team, args, values, mine);
      for (int l = 0; l < kHere; ++l) {
        const int lane = lane_of(team, l);
        Sixteen sum;
        ok = ok && ll_sum_lane<N>(
                       world, call, args, first, lane, [&] { return decode(args, mine[l].codes, mine[l].scale); }, sum);
        if (ok) store_sixteen<Lanes>(args, tile, lane, sum);
      }
    });
  }
  call.check_headers();
  call.leave();
}

// The first shot: each peer's chunk to it.
template <class Lanes, class Team>
TUTTI_DEVICE void ll_quantized_send(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                    const QuantizedArgs& args) {
  for (int k = 1; k < world.size; ++k) {
    const int peer = rank_after(world, k);
    for_ll_tiles(team, args, peer, [&](std::size_t tile, std::size_t first) {
      Sixteen values[kLanesHere<Team>];
      LaneCodes encoded[kLanesHere<Team>];
      load_tile<Lanes>(team, args, tile, values);
      encode(team, args, values, encoded);
      gather_scales(team, args, encoded);
      ll_send_tile(team, args, call.ll(peer, 0, world.rank), first, encoded, device::ll_flag(call.sequence()));
    });
  }
}
// The sums of this rank's chunk, to all. False on the lanes whose wait has ended without its data.
template <int N, class Lanes, class Team>
TUTTI_DEVICE bool ll_quantized_sums(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                    const QuantizedArgs& args) {
  constexpr int kHere = kLanesHere<Team>;
  bool ok = true;
  for_ll_tiles(team, args, world.rank, [&](std::size_t tile, std::size_t first) {
    Sixteen values[kHere];
    LaneCodes sums[kHere];
    load_tile<Lanes>(team, args, tile, values);
    for (int l = 0; l < kHere; ++l) {
      Sixteen sum;
      ok = ok && ll_sum_lane<N>(
                     world, call, args, first, lane_of(team, l), [&] { return values[l]; }, sum);
      if (ok) values[l] = sum;
    }
    encode(team, args, values, sums);
    gather_scales(team, args, sums);
    // Sums of what has not come are not sent on: the peers' waits end by the failure.
    if (device::all_lanes(ok)) ll_send_tile_to_all(team, world, call, args, 1, first, sums);
    store_decoded<Lanes>(team, args, tile, sums);
  });
  return ok;
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void ll_two_shot_quantized_of(const Team& team, const DeviceWorld& world, const QuantizedArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  if (team.is_worker()) {
    ll_quantized_send<Lanes>(team, world, call, args);
    bool ok = ll_quantized_sums<N, Lanes>(team, world, call, args);
    const auto vectors = static_cast<std::size_t>(tile_vectors(args.scale_vectors));
    for_warp_tasks<0>(team, static_cast<int>(args.block_tiles), [&](int /*i*/, int task) {
      const auto index = static_cast<std::size_t>(task);
      std::uint32_t mask = 0;
      for (int p = 0; p < world.size; ++p) {
        if (p != world.rank && tile_of(team, args, p, index) < args.tiles) mask |= 1u << p;
      }
      for (int l = 0; l < kLanesHere<Team>; ++l) {
        const int lane = lane_of(team, l);
        ok = ok && ll_receive_lane<N>(world, call, args, 1, index * vectors, lane, mask,
                                      [&](int p, const Vec16& codes, float scale) {
                                        if ((mask >> p & 1) == 0) return;
                                        const std::size_t tile = tile_of(team, args, p, index);
                                        store_sixteen<Lanes>(args, tile, lane, decode(args, codes, scale));
                                      });
      }
    });
  }
  call.check_headers();
  call.leave();
}

// A tile in a piece of the ring, whose `index`-th tile it is.
template <class Team>
TUTTI_DEVICE void store_tile(const Team& team, const QuantizedArgs& args, std::byte* slot, std::size_t index,
                             const LaneCodes (&encoded)[kLanesHere<Team>]) {
  auto* vectors = reinterpret_cast<Vec16*>(slot) + index * static_cast<std::size_t>(tile_vectors(args.scale_vectors));
  for (int l = 0; l < kLanesHere<Team>; ++l) {
    const int lane = lane_of(team, l);
    vectors[lane] = encoded[l].codes;
    if (lane < args.scale_vectors) vectors[kLanes + lane] = encoded[l].scales;
  }
}
TUTTI_DEVICE void load_lane(const QuantizedArgs& args, const std::byte* slot, std::size_t index, int lane, Vec16& codes,
                            float& scale) {
  const auto* vectors =
      reinterpret_cast<const Vec16*>(slot) + index * static_cast<std::size_t>(tile_vectors(args.scale_vectors));
  codes = vectors[lane];
  scale = float_of(vectors[scale_vector(args, lane)].w[scale_word(args, lane)]);
}

// Calls f(tile, index in the piece) for this warp's tiles of piece `k` of chunk `chunk`. Workers only.
template <class Team, class F>
TUTTI_DEVICE void for_piece_tiles(const Team& team, const QuantizedArgs& args, int chunk, std::size_t k, F f) {
  for_warp_tasks<0>(team, static_cast<int>(args.piece_tiles), [&](int /*i*/, int task) {
    const auto index = static_cast<std::size_t>(task);
    const std::size_t tile = tile_of(team, args, chunk, k * args.piece_tiles + index);
    if (tile < args.tiles) f(tile, index);
  });
}

// One step of the ring of bulk.cuh: what goes out of piece k.
template <class Lanes, class Team>
TUTTI_DEVICE void send_piece(const Team& team, const DeviceWorld& world, const QuantizedArgs& args,
                             const BulkRing<Team>& ring, std::size_t k) {
  if (!team.is_worker()) return;
  for (int d = 1; d < world.size; ++d) {
    const int peer = rank_after(world, d);
    std::byte* slot = ring.slot(peer, 0, k, world.rank);
    for_piece_tiles(team, args, peer, k, [&](std::size_t tile, std::size_t index) {
      Sixteen values[kLanesHere<Team>];
      LaneCodes encoded[kLanesHere<Team>];
      load_tile<Lanes>(team, args, tile, values);
      encode(team, args, values, encoded);
      gather_scales(team, args, encoded);
      store_tile(team, args, slot, index, encoded);
    });
  }
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void add_piece(const Team& team, const DeviceWorld& world, const QuantizedArgs& args,
                            const BulkRing<Team>& ring, std::size_t k) {
  if (!team.is_worker()) return;
  constexpr int kHere = kLanesHere<Team>;
  for_piece_tiles(team, args, world.rank, k, [&](std::size_t tile, std::size_t index) {
    Sixteen values[kHere];
    LaneCodes sums[kHere];
    load_tile<Lanes>(team, args, tile, values);
    for (int l = 0; l < kHere; ++l) {
      Sixteen sum;
      TUTTI_UNROLL
      for (int r = 0; r < N; ++r) {
        if (r >= group_size<N>(world)) break;
        if (r == world.rank) {
          accumulate(sum, values[l], r == 0);
        } else {
          Vec16 codes;
          float scale;
          load_lane(args, ring.slot(world.rank, 0, k, r), index, lane_of(team, l), codes, scale);
          accumulate(sum, decode(args, codes, scale), r == 0);
        }
      }
      values[l] = sum;
    }
    encode(team, args, values, sums);
    gather_scales(team, args, sums);
    for (int d = 1; d < world.size; ++d) {
      store_tile(team, args, ring.slot(rank_after(world, d), 1, k, world.rank), index, sums);
    }
    store_decoded<Lanes>(team, args, tile, sums);
  });
}

template <class Lanes, class Team>
TUTTI_DEVICE void take_piece(const Team& team, const DeviceWorld& world, const QuantizedArgs& args,
                             const BulkRing<Team>& ring, std::size_t k) {
  if (!team.is_worker()) return;
  for (int d = 1; d < world.size; ++d) {
    const int peer = rank_after(world, d);
    const std::byte* slot = ring.slot(world.rank, 1, k, peer);
    for_piece_tiles(team, args, peer, k, [&](std::size_t tile, std::size_t index) {
      for (int l = 0; l < kLanesHere<Team>; ++l) {
        Vec16 codes;
        float scale;
        load_lane(args, slot, index, lane_of(team, l), codes, scale);
        store_sixteen<Lanes>(args, tile, lane_of(team, l), decode(args, codes, scale));
      }
    });
  }
}

template <int N, class Lanes, class Team>
TUTTI_DEVICE void bulk_quantized_of(const Team& team, const DeviceWorld& world, const QuantizedArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  call.check_headers();  // the workers go on meanwhile
  const BulkRing<Team> ring(team, world, call);
  const std::size_t pieces = (args.block_tiles + args.piece_tiles - 1) / args.piece_tiles;
  for (std::size_t k = 0; k < pieces + 2; ++k) {
    if (k < pieces) send_piece<Lanes>(team, world, args, ring, k);
    const bool added = k >= 1 && k - 1 < pieces;
    if (added) {
      if (!ring.wait(0, k - 1)) break;
      add_piece<N, Lanes>(team, world, args, ring, k - 1);
    }
    if (k >= 2) {
      if (!ring.wait(1, k - 2)) break;
      take_piece<Lanes>(team, world, args, ring, k - 2);
    }
    team.sync();
    if (k < pieces) ring.signal(0, k);
    if (added) ring.signal(1, k - 1);
  }
  ring.finish(pieces);
  call.leave();
}

template <QuantizedPattern kPattern, class Lanes, class Team>
TUTTI_DEVICE void quantized_all_reduce(const Team& team, const DeviceWorld& world, const QuantizedArgs& args) {
  with_group_size(world.size, [&]<int N>() {
    if constexpr (kPattern == QuantizedPattern::kLL) ll_quantized_of<N, Lanes>(team, world, args);
    if constexpr (kPattern == QuantizedPattern::kLLTwoShot) ll_two_shot_quantized_of<N, Lanes>(team, world, args);
    if constexpr (kPattern == QuantizedPattern::kBulk) bulk_quantized_of<N, Lanes>(team, world, args);
  });
}

}  // namespace tutti::cuda
