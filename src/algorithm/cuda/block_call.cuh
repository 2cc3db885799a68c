// What every block does around its part of a collective: numbers the call, announces it to the same block of each peer,
// and waits for theirs.
//
// Why slots may be used again. Each block counts its own calls in device memory and alternates between two sets of
// slots. A call ends only when the headers of all peers for it have come. So when this block starts call s + 2, every
// peer has started s + 1, hence has finished reading what came with s, which lay in the slots that s + 2 writes. That
// holds for every collective, rooted or not, because headers go between all pairs in each.
//
// LL flags are 30 bits of the sequence. In the first two calls of each period of 2^30, the block clears the other set
// of slots before it sends anything: no peer writes there before it has this call's header.
//
// A header is (low half of the sequence number, fingerprint of the call): a peer that makes another call is found here.
//
// The threads of a block leave a call together or not at all. A peer may poison the communicator between the loads of
// two threads; were each to go by its own, the first to leave would be missing at the others' barriers, some of which
// count threads and have no deadline.
#pragma once

#include "algorithm/cuda/team.cuh"
#include "channel/cuda/device_world.h"
#include "tutti/device/packets.cuh"

namespace tutti::cuda {

// Marks what one block at a time may use, and tells whether it was in use: then two kernels of one communicator run at
// the same time.
TUTTI_DEVICE std::uint64_t set_busy(std::uint64_t* busy) {
#if defined(__CUDA_ARCH__)
  return atomicExch(reinterpret_cast<unsigned long long*>(busy), 1ULL);
#else
  // relaxed: nothing is published by it.
  return std::atomic_ref<std::uint64_t>(*busy).exchange(1, std::memory_order_relaxed);
#endif
}

template <class Team>
class BlockCall {
 public:
  // `ticket`: see device::Awaited.
  TUTTI_DEVICE BlockCall(const Team& team, const DeviceWorld& world, std::uint32_t fingerprint,
                         std::uint32_t ticket = 0)
      : team_(team), world_(world), fingerprint_(fingerprint), ticket_(ticket) {}

  // Starts the call. All threads; false on all or none: the communicator has failed, leave at once.
  TUTTI_DEVICE bool enter() {
    open();
    if (!goes_on()) return false;
    announce(true);
    return true;
  }

  // The same in two steps, for kernels that send packets: each warp decides for itself whether it sends, so that none
  // waits for the others before, and all of them whether they go on, while the packets travel. All threads call both,
  // and nothing is awaited between them.
  //
  // Whether this warp may send: not behind a call that has failed, since slots may not be free then, see above. A
  // failure that another kernel is just recording may go unseen.
  TUTTI_DEVICE bool begin() {
    open();
    const bool may_send = team_.all_of_warp(device::load_relaxed(world_.control.poison) == 0);
    announce(may_send);
    return may_send;
  }
  TUTTI_DEVICE bool goes_on() const {
    if (!team_.any(device::load_relaxed(world_.control.poison) != 0)) return true;
    // Still reported: a peer may have failed between the calls.
    if (team_.is_first_control()) {
      device::fail_as_told(world_.control, awaited(world_.rank));
      device::store_relaxed(&world_.state->blocks[team_.block()].busy, 0);
    }
    return false;
  }

  // Waits for the headers of all peers: on the control warp, beside the workers. What this thread has found: false if a
  // peer makes another call or does not come. Scratch takes no harm from a call that goes on; the peers' own memory
  // would.
  TUTTI_DEVICE bool check_headers() const {
    bool agreed = true;
    if (team_.is_first_control() && was_busy_ != 0) {
      agreed = false;
      device::fail(world_.control, device::pack_poison(device::FailureCode::kOverlap, world_.rank, world_.rank),
                   awaited(world_.rank), 0);
    }
    team_.for_peers(world_.rank, world_.size, [&](int peer) {
      const std::uint64_t* word = header(world_.scratch[world_.rank], peer);
      const std::uint64_t low = expected_header() >> 32;
      std::uint64_t seen = 0;
      const bool came = device::wait_until(world_.control, awaited(peer), [&] {
        seen = device::load_relaxed(word);
        return seen >> 32 == low && (seen & 0xffffffffu) != 0;
      });
      if (!came || seen != expected_header()) agreed = false;
      if (came && seen != expected_header()) {
        const std::uint64_t theirs = seen & 0xffffffffu;
        device::fail(world_.control, device::pack_poison(device::FailureCode::kMismatch, peer, world_.rank, theirs),
                     awaited(peer), theirs);
      }
    });
    if (!agreed) miss();
    return agreed;
  }

  // The same, of kernels that begin with await_preceding(): then what follows may come. All threads of a warp; what all
  // of them have found.
  TUTTI_DEVICE bool check_headers_and_go() const {
    const bool agreed = team_.all_of_warp(check_headers());
    if (agreed && team_.is_first_control()) let_next_come();
    return agreed;
  }

  // What this thread waits for does not come: the call is never seen as completed. The failure's record alone cannot
  // tell that: it may bear the ticket of another call, which ran beside this one.
  TUTTI_DEVICE void miss() const {
#if defined(__CUDA_ARCH__)
    missed_by_block() = 1;
#else
    missed_ = true;
#endif
  }

  // Ends the call: nothing of it is touched after this. All threads.
  TUTTI_DEVICE void leave() const {
    team_.step(4 * sequence_ + 2);
#if defined(__CUDA_ARCH__)
    team_.sync();
    const bool incomplete = missed_by_block() != 0;
#else
    const bool incomplete = team_.any(missed_);
#endif
    if (!team_.is_first_control()) return;
    BlockState& state = world_.state->blocks[team_.block()];
    device::store_relaxed(&state.sequence, sequence_ + 1);
    if (ticket_ != 0 && !incomplete) device::store_relaxed(&state.progress, pack_progress(ticket_, ticket_));
    device::store_relaxed(&state.busy, 0);
  }

  TUTTI_DEVICE int parity() const { return static_cast<int>(sequence_ % kParities); }
  TUTTI_DEVICE std::uint64_t sequence() const { return sequence_; }
  TUTTI_DEVICE device::Awaited awaited(int peer) const {
    return {peer, sequence_, fingerprint_, ticket_, header(world_.scratch[world_.rank], 0)};
  }

  // The slots of phase `phase` at `owner` that `src` writes in this call.
  TUTTI_DEVICE device::Pair64* ll(int owner, int phase, int src) const {
    return reinterpret_cast<device::Pair64*>(world_.scratch[owner] +
                                             world_.layout.ll(team_.block(), parity(), phase, src));
  }
  TUTTI_DEVICE device::Pair64* ll128(int owner, int phase, int src) const {
    return reinterpret_cast<device::Pair64*>(world_.scratch[owner] +
                                             world_.layout.ll128(team_.block(), parity(), phase, src));
  }

 private:
#if defined(__CUDA_ARCH__)
  // In shared memory: a register for it, all through the call, is one that the kernels do not have.
  __device__ __forceinline__ static int& missed_by_block() {
    __shared__ int missed;
    return missed;
  }
#endif
  TUTTI_DEVICE void open() {
    BlockState& state = world_.state->blocks[team_.block()];
    sequence_ = device::load_relaxed(&state.sequence);
    team_.step(4 * sequence_);
    // The answer is looked at in check_headers(): it takes longer than the loads.
    if (team_.is_first_control()) was_busy_ = set_busy(&state.busy);
#if defined(__CUDA_ARCH__)
    if (team_.is_first_control()) missed_by_block() = 0;  // the barrier of goes_on() is before any miss()
#endif
  }
  TUTTI_DEVICE void announce(bool may_send) {
    if ((sequence_ & (device::kFlagPeriod - 1)) < kParities) scrub();
    team_.for_peers(world_.rank, world_.size, [&](int peer) {
      if (may_send) device::store_relaxed(header(world_.scratch[peer], world_.rank), expected_header());
    });
    if (may_send && ticket_ != 0 && team_.is_first_control()) {
      // The call before this one has ended, whichever it was: it has not failed.
      device::store_relaxed(&world_.state->blocks[team_.block()].progress, pack_progress(ticket_, ticket_ - 1));
    }
    team_.step(4 * sequence_ + 1);
  }
  TUTTI_DEVICE std::uint64_t expected_header() const { return sequence_ << 32 | fingerprint_; }
  TUTTI_DEVICE std::uint64_t* header(std::byte* scratch, int src) const {
    return reinterpret_cast<std::uint64_t*>(scratch + world_.layout.header(team_.block(), parity(), src));
  }
  TUTTI_DEVICE void scrub() const {
    const int other = (parity() + 1) % kParities;
    constexpr std::size_t kPairs = kLLSlotBytes / sizeof(device::Pair64);
    for (int phase = 0; phase < kPhases; ++phase) {
      for (int src = 0; src < world_.size; ++src) {
        auto* slot = reinterpret_cast<device::Pair64*>(world_.scratch[world_.rank] +
                                                       world_.layout.ll(team_.block(), other, phase, src));
        if (!team_.is_worker()) continue;
        for (auto i = static_cast<std::size_t>(team_.worker()); i < kPairs;
             i += static_cast<std::size_t>(team_.workers())) {
          device::store_relaxed(slot + i, device::Pair64{0, 0});
        }
      }
    }
#if defined(__CUDA_ARCH__)
    __threadfence_system();  // before the headers that let a peer write there
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
    team_.sync();
  }

  const Team& team_;
  const DeviceWorld& world_;
  const std::uint32_t fingerprint_;
  const std::uint32_t ticket_;
  std::uint64_t sequence_ = 0;
  std::uint64_t was_busy_ = 0;
#if !defined(__CUDA_ARCH__)
  mutable bool missed_ = false;  // by this thread
#endif
};

}  // namespace tutti::cuda
