// Exchanges and two-shot all-reduce by plain stores into scratch, a signal a piece. For large messages: no flags on the
// wire, any link.
//
// Each block cuts its part into pieces and keeps them in a ring of kBulkDepth (4) slots for each peer. Signals count
// the pieces of a block since the start; all ranks send the same number of signals to each other, empty pieces
// included.
//
// A block signals a piece only after it has used up the one before: the signal waits until its stores have arrived, and
// meanwhile the workers use up what has come; then they store the next piece while the control lanes signal.
//
// Why a ring of 4 is enough without acknowledgements. Exchange, step k: push piece k, wait for the peers' piece k - 1,
// use it up, signal k. A rank that pushes piece k has seen the signal k - 2 of every peer, which had used up k - 3 by
// then. Two-shot, step k: push piece k to its owner; wait for piece k - 1, reduce it and push the result to all; wait
// for the results of k - 2 and take them; signal piece k and the results of k - 1. A rank that pushes k has seen the
// results of k - 3 signalled, so all have reduced k - 3; and a rank that pushes the result of k - 1 has seen
// everybody's signal of piece k - 1, hence all have taken the results of k - 3. Between calls the same holds: whoever
// has signalled the last piece has used up the one before, and whoever has signalled the first of the next call has
// used up all.
//
// Order: all threads store, barrier, a control lane releases; a control lane acquires, barrier, all threads load.
#pragma once

#include "algorithm/cuda/block_call.cuh"
#include "algorithm/cuda/exchange_args.h"
#include "algorithm/cuda/group_size.cuh"
#include "device/cuda/reducers.cuh"

namespace tutti::cuda {

template <class Team>
class BulkRing {
 public:
  TUTTI_DEVICE BulkRing(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call)
      : team_(team), world_(world), call_(call), base_(world.state->blocks[team.block()].pieces) {}

  // The slot at `owner` for piece `k` of this call from `src`.
  TUTTI_DEVICE std::byte* slot(int owner, int phase, std::size_t k, int src) const {
    return world_.scratch[owner] + world_.layout.bulk(team_.block(), phase, base_ + k, src);
  }
  // After all workers have stored piece k of this phase and come to a barrier.
  TUTTI_DEVICE void signal(int phase, std::size_t k) const {
    team_.step(4 * (base_ + k) + static_cast<std::size_t>(phase));
    team_.for_peers(world_.rank, world_.size, [&](int peer) {
      // release: publishes the block's stores; pairs with the acquire in wait().
      device::store_release(word(peer, phase, world_.rank), base_ + k + 1);
    });
  }
  // Until piece k of this phase has come from every peer. All threads; false on all or none.
  TUTTI_DEVICE bool wait(int phase, std::size_t k) const {
    bool ok = true;
    team_.for_peers(world_.rank, world_.size, [&](int peer) {
      const std::uint64_t* inbound = word(world_.rank, phase, peer);
      // acquire: see signal().
      ok = device::wait_until(world_.control, call_.awaited(peer),
                              [&] { return device::load_acquire(inbound) >= base_ + k + 1; }) &&
           ok;
    });
    if (!ok) call_.miss();
    const bool none_failed = !team_.any(!ok);
    team_.step(4 * (base_ + k) + 2 + static_cast<std::size_t>(phase));  // then the piece is read
    return none_failed;
  }
  TUTTI_DEVICE void finish(std::size_t pieces) const {
    team_.sync();
    if (team_.is_first_control()) world_.state->blocks[team_.block()].pieces = base_ + pieces;
  }

 private:
  TUTTI_DEVICE std::uint64_t* word(int owner, int phase, int src) const {
    return reinterpret_cast<std::uint64_t*>(world_.scratch[owner] +
                                            world_.layout.bulk_signal(team_.block(), phase, src));
  }

  const Team& team_;
  const DeviceWorld& world_;
  const BlockCall<Team>& call_;
  const std::uint64_t base_;
};

// Copies with all workers; several vectors in flight a thread where both sides are aligned.
template <class Team>
TUTTI_DEVICE void worker_copy(const Team& team, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (!team.is_worker()) return;
  const auto stride = static_cast<std::size_t>(team.workers()) * 16;
  std::size_t at = static_cast<std::size_t>(team.worker()) * 16;
#if defined(__CUDA_ARCH__)
  if (device::aligned(to, 16) && device::aligned(from, 16)) {
    for (; at + 3 * stride + 16 <= bytes; at += 4 * stride) {
      Vec16 v[4];
      TUTTI_UNROLL
      for (int u = 0; u < 4; ++u) v[u] = *reinterpret_cast<const Vec16*>(from + at + u * stride);
      TUTTI_UNROLL
      for (int u = 0; u < 4; ++u) *reinterpret_cast<Vec16*>(to + at + u * stride) = v[u];
    }
  }
#endif
  for (; at < bytes; at += stride) device::store_user(to + at, device::load_user(from + at, bytes - at), bytes - at);
}

// One source to several places, and to `own` in this rank's memory unless it is null: each vector is loaded once. `own`
// is aligned to 16 bytes: it is stored by vectors, as the peers' places are.
template <class Team>
TUTTI_DEVICE void worker_spread(const Team& team, std::byte* const* to, int count, std::byte* own,
                                const std::byte* from, std::size_t bytes) {
  if (!team.is_worker()) return;
  const auto stride = static_cast<std::size_t>(team.workers()) * 16;
  std::size_t at = static_cast<std::size_t>(team.worker()) * 16;
#if defined(__CUDA_ARCH__)
  bool all_aligned = device::aligned(from, 16);
  TUTTI_UNROLL
  for (int k = 0; k < kMaxRanks - 1; ++k) all_aligned = (k >= count || device::aligned(to[k], 16)) && all_aligned;
  if (all_aligned) {
    for (; at + 3 * stride + 16 <= bytes; at += 4 * stride) {
      Vec16 v[4];
      TUTTI_UNROLL
      for (int u = 0; u < 4; ++u) v[u] = *reinterpret_cast<const Vec16*>(from + at + u * stride);
      TUTTI_UNROLL
      for (int k = 0; k < kMaxRanks - 1; ++k) {
        if (k >= count) break;
        TUTTI_UNROLL
        for (int u = 0; u < 4; ++u) *reinterpret_cast<Vec16*>(to[k] + at + u * stride) = v[u];
      }
      if (own == nullptr) continue;
      TUTTI_UNROLL
      for (int u = 0; u < 4; ++u) *reinterpret_cast<Vec16*>(own + at + u * stride) = v[u];
    }
  }
#endif
  for (; at < bytes; at += stride) {
    const Vec16 v = device::load_user(from + at, bytes - at);
    TUTTI_UNROLL
    for (int k = 0; k < kMaxRanks - 1; ++k) {
      if (k < count) device::store_user(to[k] + at, v, bytes - at);
    }
    if (own != nullptr) device::store_user(own + at, v, bytes - at);
  }
}

// The same through the reducer's own(): what a reduction sends.
template <class R, class Team>
TUTTI_DEVICE void worker_send(const Team& team, std::byte* to, const std::byte* from, std::size_t bytes,
                              const ReduceSpec& spec) {
  if (spec.op != ReduceOp::kPremulSum) return worker_copy(team, to, from, bytes);
  if (!team.is_worker()) return;
  const auto stride = static_cast<std::size_t>(team.workers()) * 16;
  for (std::size_t at = static_cast<std::size_t>(team.worker()) * 16; at < bytes; at += stride) {
    device::store_user(to + at, R::own(device::load_user(from + at, bytes - at), spec), bytes - at);
  }
}

// Reduces one piece: this rank's input and what lies in the slots; the result goes to `emit(offset, vector, left)`. Two
// items of every rank are in flight a thread where the input is aligned; in large groups one, which is as many loads.
template <int N, class R, class Team, class Emit>
TUTTI_DEVICE void worker_reduce(const Team& team, const DeviceWorld& world, const BulkRing<Team>& ring, std::size_t k,
                                const std::byte* own, std::size_t bytes, const ReduceSpec& spec, Emit emit) {
  if (!team.is_worker()) return;
  const int size = group_size<N>(world);
  // One address, not one a rank: the slots of a piece lie one after another.
  const std::byte* const first_slot = ring.slot(world.rank, 0, k, 0);
  const auto slot = [&](int p) { return first_slot + static_cast<std::size_t>(p) * kBulkPieceBytes; };
  const auto stride = static_cast<std::size_t>(team.workers()) * 16;
  std::size_t at = static_cast<std::size_t>(team.worker()) * 16;
#if defined(__CUDA_ARCH__)
  constexpr int kInFlight = N > 4 ? 1 : 2;
  if (device::aligned(own, 16)) {
    for (; at + (kInFlight - 1) * stride + 16 <= bytes; at += kInFlight * stride) {
      Vec16 v[kInFlight][N];
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) {
        TUTTI_UNROLL
        for (int p = 0; p < N; ++p) {
          if (p >= size) break;
          const std::byte* from = p == world.rank ? own : slot(p);
          v[u][p] = *reinterpret_cast<const Vec16*>(from + at + u * stride);
          if (p == world.rank) v[u][p] = R::own(v[u][p], spec);
        }
      }
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) emit(at + u * stride, R::reduce(v[u], size, spec), 16);
    }
  }
#endif
  for (; at < bytes; at += stride) {
    Vec16 v[N];
    TUTTI_UNROLL
    for (int p = 0; p < N; ++p) {
      if (p < size && p != world.rank) v[p] = *reinterpret_cast<const Vec16*>(slot(p) + at);
    }
    put_own<N>(v, world.rank, R::own(device::load_user(own + at, bytes - at), spec));
    emit(at, R::reduce(v, size, spec), bytes - at);
  }
}

TUTTI_DEVICE std::size_t pieces_of(std::size_t block_bytes, std::size_t piece_bytes) {
  return piece_bytes == 0 ? 0 : (block_bytes + piece_bytes - 1) / piece_bytes;
}
TUTTI_DEVICE Range piece(Range block, std::size_t piece_bytes, std::size_t k) {
  const std::size_t begin = block.begin + k * piece_bytes;
  if (begin >= block.end) return {block.end, block.end};
  return {begin, block.end - begin < piece_bytes ? block.end : begin + piece_bytes};
}

// Whether all peers get the same bytes.
TUTTI_DEVICE bool same_to_all(const DeviceWorld& world, const ExchangeArgs& args) {
  const int first = world.rank == 0 ? 1 : 0;
  bool same = args.send_bytes[first] > 0;
  for (int p = 0; p < world.size; ++p) {
    if (p != world.rank)
      same = args.send[p] == args.send[first] && args.send_bytes[p] == args.send_bytes[first] && same;
  }
  return same;
}

// Every exchange. Sink(k) uses up piece k once it has come; Send(to, from, bytes) stores what goes out. Without
// arithmetic (kPlain), this rank's own part is copied too where it is to lie elsewhere, and what goes to all alike is
// loaded once.
template <bool kPlain, class Team, class Send, class Sink>
TUTTI_DEVICE void bulk_exchange(const Team& team, const DeviceWorld& world, const ExchangeArgs& args,
                                const BulkRing<Team>& ring, Send send, Sink sink) {
  const std::size_t pieces = pieces_of(args.block_bytes, args.piece_bytes);
  const int next = world.rank + 1 < world.size ? world.rank + 1 : 0;
  std::byte* const kept = kPlain ? kept_part(args, world.rank) : nullptr;
  const bool own_alike = kept != nullptr && args.send[world.rank] == args.send[next] && device::aligned(kept, 16);
  const bool spread = kPlain && (world.size > 2 || own_alike) && same_to_all(world, args);
  for (std::size_t k = 0; k <= pieces; ++k) {
    if (k < pieces && spread) {
      const Range r = piece(part(args.send_bytes[next], args.block_bytes, team.block()), args.piece_bytes, k);
      std::byte* to[kMaxRanks - 1] = {};
      TUTTI_UNROLL
      for (int d = 1; d < kMaxRanks; ++d) {
        const int peer = rank_after(world, d);
        if (d < world.size) to[d - 1] = ring.slot(peer, 0, k, world.rank);
      }
      worker_spread(team, to, world.size - 1, own_alike ? kept + r.begin : nullptr, args.send[next] + r.begin,
                    r.bytes());
    } else if (k < pieces) {
      for (int d = 1; d < world.size; ++d) {
        const int peer = rank_after(world, d);
        const Range r = piece(part(args.send_bytes[peer], args.block_bytes, team.block()), args.piece_bytes, k);
        if (r.bytes() > 0) send(ring.slot(peer, 0, k, world.rank), args.send[peer] + r.begin, r.bytes());
      }
    }
    if (k < pieces && kept != nullptr && !(spread && own_alike)) {
      const Range r = piece(part(args.receive_bytes[world.rank], args.block_bytes, team.block()), args.piece_bytes, k);
      worker_copy(team, kept + r.begin, args.send[world.rank] + r.begin, r.bytes());
    }
    if (k >= 1) {
      if (!ring.wait(0, k - 1)) break;
      sink(k - 1);
    }
    team.sync();
    if (k < pieces) ring.signal(0, k);
  }
  ring.finish(pieces);
}

template <class Team>
TUTTI_DEVICE void bulk_copy(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  call.check_headers();  // the workers go on meanwhile
  const BulkRing<Team> ring(team, world, call);
  bulk_exchange<true>(
      team, world, args, ring,
      [&](std::byte* to, const std::byte* from, std::size_t bytes) { worker_copy(team, to, from, bytes); },
      [&](std::size_t k) {
        for (int p = 0; p < world.size; ++p) {
          const Range r = piece(part(args.receive_bytes[p], args.block_bytes, team.block()), args.piece_bytes, k);
          if (p == world.rank || r.bytes() == 0) continue;
          worker_copy(team, args.receive[p] + r.begin, ring.slot(world.rank, 0, k, p), r.bytes());
        }
      });
  call.leave();
}

template <int N, class R, class Team>
TUTTI_DEVICE void bulk_reduce_of(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  call.check_headers();  // the workers go on meanwhile
  const BulkRing<Team> ring(team, world, call);
  bulk_exchange<false>(
      team, world, args, ring,
      [&](std::byte* to, const std::byte* from, std::size_t bytes) {
        worker_send<R>(team, to, from, bytes, args.spec);
      },
      [&](std::size_t k) {
        const Range r = piece(part(args.output_bytes, args.block_bytes, team.block()), args.piece_bytes, k);
        if (r.bytes() == 0) return;
        worker_reduce<N, R>(team, world, ring, k, args.send[world.rank] + r.begin, r.bytes(), args.spec,
                            [&](std::size_t at, const Vec16& v, std::size_t left) {
                              device::store_user(args.output + r.begin + at, v, left);
                            });
      });
  call.leave();
}

// Both shots of an all-reduce, without what is around a call: sink(offset, vector, bytes left) takes the sums of this
// rank's chunk, copy(offset, from, bytes) those of the peers' chunks. All threads.
template <int N, class R, class Team, class Sink, class Copy>
TUTTI_DEVICE void bulk_two_shot_data(const Team& team, const DeviceWorld& world, const BlockCall<Team>& call,
                                     const TwoShotArgs& args, Sink sink, Copy copy) {
  const int size = group_size<N>(world);
  const BulkRing<Team> ring(team, world, call);
  const std::size_t pieces = pieces_of(args.block_bytes, args.piece_bytes);
  const auto range_of = [&](int p, std::size_t k) {
    return piece(part(part(args.bytes, args.chunk_bytes, p), args.block_bytes, team.block()), args.piece_bytes, k);
  };
  for (std::size_t k = 0; k < pieces + 2; ++k) {
    if (k < pieces) {
      for (int d = 1; d < N; ++d) {
        if (d >= size) break;
        const int peer = rank_after(world, d);
        const Range r = range_of(peer, k);
        if (r.bytes() > 0) {
          worker_send<R>(team, ring.slot(peer, 0, k, world.rank), args.input + r.begin, r.bytes(), args.spec);
        }
      }
    }
    const bool reduced = k >= 1 && k - 1 < pieces;
    if (reduced) {
      if (!ring.wait(0, k - 1)) break;
      const Range r = range_of(world.rank, k - 1);
      worker_reduce<N, R>(team, world, ring, k - 1, args.input + r.begin, r.bytes(), args.spec,
                          [&](std::size_t at, const Vec16& v, std::size_t left) {
                            sink(r.begin + at, v, left);
                            for (int d = 1; d < N; ++d) {
                              if (d >= size) break;
                              const int peer = rank_after(world, d);
                              *reinterpret_cast<Vec16*>(ring.slot(peer, 1, k - 1, world.rank) + at) = v;
                            }
                          });
    }
    if (k >= 2) {
      if (!ring.wait(1, k - 2)) break;
      for (int d = 1; d < N; ++d) {
        if (d >= size) break;
        const int peer = rank_after(world, d);
        const Range r = range_of(peer, k - 2);
        if (r.bytes() > 0) copy(r.begin, ring.slot(world.rank, 1, k - 2, peer), r.bytes());
      }
    }
    team.sync();
    if (k < pieces) ring.signal(0, k);
    if (reduced) ring.signal(1, k - 1);
  }
  ring.finish(pieces);
}

template <int N, class R, class Team>
TUTTI_DEVICE void bulk_two_shot_of(const Team& team, const DeviceWorld& world, const TwoShotArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  call.check_headers();  // the workers go on meanwhile
  bulk_two_shot_data<N, R>(
      team, world, call, args,
      [&](std::size_t at, const Vec16& v, std::size_t left) { device::store_user(args.output + at, v, left); },
      [&](std::size_t at, const std::byte* from, std::size_t bytes) {
        worker_copy(team, args.output + at, from, bytes);
      });
  call.leave();
}

template <class R, class Team>
TUTTI_DEVICE void bulk_reduce(const Team& team, const DeviceWorld& world, const ExchangeArgs& args) {
  with_group_size(world.size, [&]<int N>() { bulk_reduce_of<N, R>(team, world, args); });
}
template <class R, class Team>
TUTTI_DEVICE void bulk_two_shot(const Team& team, const DeviceWorld& world, const TwoShotArgs& args) {
  with_group_size(world.size, [&]<int N>() { bulk_two_shot_of<N, R>(team, world, args); });
}

}  // namespace tutti::cuda
