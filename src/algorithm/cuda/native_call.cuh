// One call of a program's own kernel (tutti/plugin/kernel.cuh): what is around its thread blocks, and what carries out
// what they ask for.
//
// Every block announces the call to the same block of each peer and waits for theirs, as in every other kernel
// (BlockCall), but before the program's code begins. A peer's header of a call comes after its kernel of the call
// before has ended, all blocks of it: so whatever has been written into scratch since the call began belongs to this
// call, and all that earlier ones have left has been read. That costs a trip, and asks no protocol of the program.
//
// Signals. A word holds (number of the call, how many signals of this call): up to 2^20 of them, in 2^44 calls. Words
// only rise, and what nobody has waited for means nothing in a later call. The number of a call is the same for all
// blocks of a launch, however many they are: the last one to end counts it. It is the packets' flag, too: those of
// another call are taken for this one's only where nobody has written for 2^32 - 1 calls.
//
// Thread rule: KernelTeam is one thread's; all workers of a block call the same functions with the same arguments.
// Words for a peer are one lane's: that of number peer % workers.
#pragma once

#include "algorithm/cuda/block_call.cuh"
#include "algorithm/cuda/native_args.h"
#include "device/cuda/reducers.cuh"
#include "executor/cuda/packet_words.cuh"
#include "tutti/plugin/kernel.cuh"

namespace tutti::cuda {

// R: as of executor::PlanBlock.
template <class R, class Team>
class KernelTeam {
 public:
  TUTTI_DEVICE KernelTeam(const Team& team, const DeviceWorld& world, const NativeArgs& args,
                          const BlockCall<Team>& call)
      : team_(team), world_(world), args_(args), call_(call) {
    number_ = device::load_relaxed(&args.state->calls) + 1;
    flag_ = static_cast<std::uint32_t>(number_ % 0xffffffffu) + 1;
    for (int p = team.worker(); p < world.size; p += team.workers()) sent()[p] = taken()[p] = 0;
  }

  TUTTI_DEVICE int rank() const { return world_.rank; }
  TUTTI_DEVICE int size() const { return world_.size; }
  TUTTI_DEVICE int root() const { return args_.root; }
  TUTTI_DEVICE int block() const { return team_.block(); }
  TUTTI_DEVICE int blocks() const { return team_.blocks(); }
  TUTTI_DEVICE int thread() const { return team_.worker(); }
  TUTTI_DEVICE int threads() const { return team_.workers(); }
  TUTTI_DEVICE const std::byte* input(int rank_block) const { return args_.user[rank_block]; }
  TUTTI_DEVICE std::byte* output(int rank_block) const { return args_.user[kNativeBlocks + rank_block]; }
  TUTTI_DEVICE std::uint64_t block_bytes() const { return args_.block_bytes; }
  TUTTI_DEVICE std::uint64_t element_bytes() const { return args_.element_bytes; }
  TUTTI_DEVICE std::byte* scratch(int of_rank) const { return args_.memory[of_rank] + kNativeWords; }
  TUTTI_DEVICE std::uint64_t scratch_bytes() const { return args_.scratch_bytes; }

  TUTTI_DEVICE void sync() const { team_.sync_workers(); }

  TUTTI_DEVICE void signal(int peer) {
    sync();
    if (team_.worker() == peer % team_.workers()) raise(peer);
  }
  TUTTI_DEVICE bool wait(int peer) {
    if (team_.worker() == peer % team_.workers()) await(peer);
    return !team_.any_worker(failed_);
  }
  TUTTI_DEVICE bool barrier() {
    sync();
    for (int p = team_.worker(); p < size(); p += team_.workers()) {
      if (p != rank()) raise(p);
    }
    for (int p = team_.worker(); p < size(); p += team_.workers()) {
      if (p != rank()) await(p);
    }
    return !team_.any_worker(failed_);
  }

  TUTTI_DEVICE void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) const {
    constexpr int kInFlight = 4;
    std::uint64_t at = first();
    for (; at + (kInFlight - 1) * stride() + 16 <= bytes; at += kInFlight * stride()) {
      Vec16 v[kInFlight];
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) v[u] = executor::load_any(from + at + u * stride(), 16);
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) executor::store_any(to + at + u * stride(), v[u], 16);
    }
    for (; at < bytes; at += stride()) {
      executor::store_any(to + at, executor::load_any(from + at, bytes - at), bytes - at);
    }
  }
  TUTTI_DEVICE void reduce(std::byte* to, const std::byte* const* from, int sources, std::uint64_t bytes) {
    if (sources > kMost) {
      refused_ = true;
      return;
    }
    for (std::uint64_t at = first(); at < bytes; at += stride()) {
      Vec16 v[kMost];
      TUTTI_UNROLL
      for (int s = 0; s < kMost; ++s) {
        if (s < sources) v[s] = executor::load_any(from[s] + at, bytes - at);
      }
      executor::store_any(to + at, R::reduce(v, sources, args_.spec), bytes - at);
    }
  }
  TUTTI_DEVICE void divide(std::byte* data, std::uint64_t bytes) const {
    if (args_.averages == 0) return;
    ReduceSpec spec = args_.spec;
    spec.op = ReduceOp::kAvg;
    for (std::uint64_t at = first(); at < bytes; at += stride()) {
      const Vec16 v[1] = {executor::load_any(data + at, bytes - at)};
      executor::store_any(data + at, R::reduce(v, 1, spec), bytes - at);
    }
  }

  TUTTI_DEVICE void put_packets(int peer, std::uint64_t at, const std::byte* from, std::uint64_t bytes) const {
    std::uint64_t* const to = packets(peer, at);
    const bool aligned = device::aligned(from, 8), pairs = device::aligned(to, 16);
    const executor::PacketShare mine = share();
    for (std::uint64_t i = mine.first; i < bytes; i += stride()) {
      const executor::PacketItem item = executor::packet_item<false>(i, mine, bytes);
      executor::store_words(to, item,
                            executor::words_of(executor::load_pieces<false>(from, item, bytes, aligned), flag_), pairs);
    }
  }
  TUTTI_DEVICE bool take_packets(int peer, std::uint64_t at, std::byte* to, std::uint64_t bytes) {
    const std::uint64_t* const from = packets(rank(), at);
    const bool aligned = device::aligned(to, 8), pairs = device::aligned(from, 16);
    const executor::PacketShare mine = share();
    for (std::uint64_t i = mine.first; !failed_ && i < bytes; i += stride()) {
      const executor::PacketItem item = executor::packet_item<false>(i, mine, bytes);
      executor::PacketWords p{};
      failed_ = !device::wait_until(world_.control, call_.awaited(peer), [&] {
        p = executor::load_packets(from, item, pairs);
        return executor::packets_arrived(p, item, flag_);
      });
      if (!failed_) executor::store_pieces<false>(to, item, executor::payload_of(p), bytes, aligned);
    }
    return !team_.any_worker(failed_);
  }
  // All ranks' packets of an item are polled together: their latencies overlap.
  TUTTI_DEVICE bool reduce_packets(std::byte* to, const std::byte* own, std::uint64_t at, std::uint64_t stride_of_rank,
                                   std::uint64_t bytes) {
    const bool aligned = device::aligned(own, 8) && device::aligned(to, 8);
    const executor::PacketShare mine = share();
    for (std::uint64_t i = mine.first; !failed_ && i < bytes; i += stride()) {
      const executor::PacketItem item = executor::packet_item<false>(i, mine, bytes);
      Vec16 v[kMost];
      const Vec16 plain = executor::load_pieces<false>(own, item, bytes, aligned);
      device::Awaited awaited = call_.awaited(rank());  // for whom, the look says
      failed_ = !device::wait_until(world_.control, awaited, [&] {
        bool all = true;
        TUTTI_UNROLL
        for (int r = 0; r < kMost; ++r) {
          if (r >= size() || r == rank()) continue;
          const std::uint64_t* const from = packets(rank(), at + r * stride_of_rank);
          const executor::PacketWords p = executor::load_packets(from, item, device::aligned(from, 16));
          v[r] = executor::payload_of(p);
          if (executor::packets_arrived(p, item, flag_)) continue;
          all = false;
          awaited.peer = r;
        }
        return all;
      });
      if (failed_) break;
      put_own<kMost>(v, rank(), plain);
      executor::store_pieces<false>(to, item, R::reduce(v, size(), args_.spec), bytes, aligned);
    }
    return !team_.any_worker(failed_);
  }

  // It asked for what cannot be; on all workers alike.
  TUTTI_DEVICE bool refused() const { return refused_; }

  // The program's code has returned, on all workers. `done`: what it returned, and nothing was refused.
  TUTTI_DEVICE void finish(bool done) {
    sync();
    if (team_.worker() != 0) return;
    if (!done) {
      // The first failure counts: this is one only where no wait has failed.
      device::fail(world_.control, device::pack_poison(device::FailureCode::kGaveUp, rank(), rank()),
                   call_.awaited(rank()), 0);
    }
    // relaxed: what it counts is ordered by the ends of the blocks' threads and the next launch.
    if (device::fetch_add_relaxed(&args_.state->ended) + 1 != static_cast<std::uint64_t>(blocks())) return;
    device::store_relaxed(&args_.state->ended, std::uint64_t{0});
    device::store_relaxed(&args_.state->calls, number_);
  }

 private:
  static constexpr int kMost = device::kMaxRanks;
  static constexpr int kSignalBits = 20;

  TUTTI_DEVICE std::uint64_t first() const { return static_cast<std::uint64_t>(team_.worker()) * 16; }
  TUTTI_DEVICE std::uint64_t stride() const { return static_cast<std::uint64_t>(team_.workers()) * 16; }
  TUTTI_DEVICE executor::PacketShare share() const {
    return executor::packet_share(team_, args_.spec.dtype == DataType::kComplex128);
  }
  TUTTI_DEVICE std::uint64_t* packets(int of_rank, std::uint64_t at) const {
    return reinterpret_cast<std::uint64_t*>(scratch(of_rank) + at);
  }
  // In the memory of `owner`, raised by this block of `src`.
  TUTTI_DEVICE std::uint64_t* word(int owner, int src) const {
    return reinterpret_cast<std::uint64_t*>(args_.memory[owner] + kNativeLine * (block() * kMost + src));
  }
  TUTTI_DEVICE void raise(int peer) {
    // release: with the barrier of the block before it, what all its threads have written and read; pairs with the
    // acquire in await().
    device::store_release(word(peer, rank()), number_ << kSignalBits | ++sent()[peer]);
  }
  TUTTI_DEVICE void await(int peer) {
    const std::uint64_t wanted = number_ << kSignalBits | ++taken()[peer];
    const std::uint64_t* const at = word(rank(), peer);
    if (!device::wait_until(world_.control, call_.awaited(peer), [&] { return device::load_relaxed(at) >= wanted; })) {
      failed_ = true;
      return;
    }
    // acquire: pairs with the release in raise(); the barrier after it passes it on to the block's other threads.
    static_cast<void>(device::load_acquire(at));
  }

#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ static std::uint32_t* counts() {
    __shared__ std::uint32_t counts[2 * kMost];
    return counts;
  }
  __device__ __forceinline__ static std::uint32_t* sent() { return counts(); }
  __device__ __forceinline__ static std::uint32_t* taken() { return counts() + kMost; }
#else
  std::uint32_t* sent() { return sent_; }
  std::uint32_t* taken() { return taken_; }
  std::uint32_t sent_[kMost] = {}, taken_[kMost] = {};
#endif

  const Team& team_;
  const DeviceWorld& world_;
  const NativeArgs& args_;
  const BlockCall<Team>& call_;
  std::uint64_t number_ = 0;
  std::uint32_t flag_ = 0;
  bool failed_ = false, refused_ = false;
};

// Body: Body::run(KernelContext&) is the program's code.
template <class R, class Body, class Team>
TUTTI_DEVICE void run_native_block(const Team& team, const DeviceWorld& world, const NativeArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  const bool agreed = call.check_headers();
  if (!team.any(!agreed) && team.is_worker()) {
    KernelTeam<R, Team> kernel(team, world, args, call);
    KernelContext<KernelTeam<R, Team>> context(kernel);
    const bool done = Body::run(context) && !kernel.refused();
    if (!done) call.miss();
    kernel.finish(done);
  }
  call.leave();
}

}  // namespace tutti::cuda
