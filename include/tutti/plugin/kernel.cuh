// A collective algorithm of your own as a kernel, compiled at run time by `tutti.compile_native("file.cu")`. The same
// function runs on CUDA tensors, compiled by NVRTC, and on tensors in main memory, compiled by the system's compiler.
//
//   #include <tutti/plugin/kernel.cuh>
//
//   template <class Team>
//   TUTTI_DEVICE bool all_gather(tutti::KernelContext<Team>& c) {
//     const auto mine = c.share(c.block_bytes());                       // of this thread block
//     c.copy(c.scratch(c.rank()) + mine.begin, c.input() + mine.begin, mine.bytes());
//     if (!c.barrier()) return false;                                   // this block of all ranks has written
//     for (int r = 0; r < c.size(); ++r) c.copy(c.output(r) + mine.begin, c.scratch(r) + mine.begin, mine.bytes());
//     return true;
//   }
//   TUTTI_NATIVE_KERNEL(create_all_gather, all_gather, .name = "my_all_gather", .collective = "allgather",
//                       .scratch_bytes = 1 << 20, .max_bytes = 1 << 20, .blocks = 8, .threads = 256)
//
// What runs. Every thread of every thread block of every rank, with the same arguments but for rank, block and memory;
// in main memory a rank is one block of one thread. All threads of a block call what is below together, with the same
// arguments, and return alike. Block b waits for block b of other ranks and for nothing else, so no block needs another
// one of its own rank; what a block has written only it may count on.
//
// When a call begins, all ranks make it and none is still in an earlier one. When it ends, the rank's output is
// complete. Scratch keeps its contents between calls. Every wait ends: past the deadline, after an abort, when a peer
// has failed; then return false, and the library raises what it knows.
#pragma once

#if defined(__CUDACC__)
#include "tutti/device/memory.cuh"
#else
#include <tutti/plugin/algorithm.h>
#define TUTTI_DEVICE inline
#endif

namespace tutti {

// For arrays by rank.
#if defined(__CUDACC__)
inline constexpr int kMostRanks = device::kMaxRanks;
#else
inline constexpr int kMostRanks = 64;
#endif

// Team: what carries it out, the library's.
template <class Team>
class KernelContext {
 public:
  TUTTI_DEVICE explicit KernelContext(Team& team) : team_(team) {}

  TUTTI_DEVICE int rank() const { return team_.rank(); }
  TUTTI_DEVICE int size() const { return team_.size(); }
  TUTTI_DEVICE int root() const { return team_.root(); }  // of broadcast, reduce, gather and scatter
  TUTTI_DEVICE int block() const { return team_.block(); }
  TUTTI_DEVICE int blocks() const { return team_.blocks(); }
  TUTTI_DEVICE int thread() const { return team_.thread(); }
  TUTTI_DEVICE int threads() const { return team_.threads(); }

  // This rank's memory, by rank block: an all-reduce has an input and an output of one, an all-gather an output of
  // size(), a reduce-scatter and an all-to-all an input of size(). They may overlap as the collective allows it: the
  // same buffer, or a rank's own block of the larger one. Null where a rooted call has no such buffer on this rank.
  TUTTI_DEVICE const std::byte* input(int rank_block = 0) const { return team_.input(rank_block); }
  TUTTI_DEVICE std::byte* output(int rank_block = 0) const { return team_.output(rank_block); }
  TUTTI_DEVICE std::uint64_t block_bytes() const { return team_.block_bytes(); }
  TUTTI_DEVICE std::uint64_t element_bytes() const { return team_.element_bytes(); }

  // Memory of any rank that all ranks may read and write: 128-byte aligned, scratch_bytes() of each.
  TUTTI_DEVICE std::byte* scratch(int of_rank) const { return team_.scratch(of_rank); }
  TUTTI_DEVICE std::uint64_t scratch_bytes() const { return team_.scratch_bytes(); }

  // The part of `bytes` that is this block's: items of 16 bytes but for the end. The same on all ranks.
  struct Share {
    std::uint64_t begin, end;
    TUTTI_DEVICE std::uint64_t bytes() const { return end - begin; }
  };
  TUTTI_DEVICE Share share(std::uint64_t bytes) const {
    const std::uint64_t items = (bytes + 15) / 16, each = (items + blocks() - 1) / blocks() * 16;
    const std::uint64_t begin = each * block() < bytes ? each * block() : bytes;
    return {begin, bytes - begin < each ? bytes : begin + each};
  }

  // All threads of the block have come here: each sees what the others have written.
  TUTTI_DEVICE void sync() { team_.sync(); }
  // What this block has written before signal() the same block of the peer reads after the matching wait(); what it has
  // read before it, that may overwrite. The k-th wait for a peer is for its k-th signal of this call: each has one.
  // Both begin or end with a sync().
  TUTTI_DEVICE void signal(int to_peer) { team_.signal(to_peer); }
  [[nodiscard]] TUTTI_DEVICE bool wait(int for_peer) { return team_.wait(for_peer); }
  // A signal to every rank, and a wait for each.
  [[nodiscard]] TUTTI_DEVICE bool barrier() { return team_.barrier(); }

  // Data, moved by the threads of the block, 16 bytes each at a time; any size and alignment. Others of the block see
  // the result after a sync().
  TUTTI_DEVICE void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    if (to != from) team_.copy(to, from, bytes);
  }
  TUTTI_DEVICE void put(int peer, std::uint64_t at, const std::byte* from, std::uint64_t bytes) {
    copy(scratch(peer) + at, from, bytes);
  }
  // to = from[0] op from[1] op ... in this order, of the call's element type and operation, narrow types in fp32 and
  // rounded once; at most size() sources, of which `to` may be one. An average is the sum: divide() at the end.
  TUTTI_DEVICE void reduce(std::byte* to, const std::byte* const* from, int sources, std::uint64_t bytes) {
    team_.reduce(to, from, sources, bytes);
  }
  // Ends an average, in place; nothing for other operations.
  TUTTI_DEVICE void divide(std::byte* data, std::uint64_t bytes) { team_.divide(data, bytes); }

  // Packets: data with a flag in each word, so that they need no signal; for small messages. `bytes` take twice as many
  // in scratch, from byte `at` of it on, a multiple of 16. What has packets has nothing else there, ever, and is
  // written once in a call.
  TUTTI_DEVICE void put_packets(int peer, std::uint64_t at, const std::byte* from, std::uint64_t bytes) {
    team_.put_packets(peer, at, from, bytes);
  }
  // Those that `peer` has put here.
  [[nodiscard]] TUTTI_DEVICE bool take_packets(int peer, std::uint64_t at, std::byte* to, std::uint64_t bytes) {
    return team_.take_packets(peer, at, to, bytes);
  }
  // to = the sum over all ranks in their order: of this rank from `own`, of every other rank r the packets that it has
  // put here at `at + r * stride`.
  [[nodiscard]] TUTTI_DEVICE bool reduce_packets(std::byte* to, const std::byte* own, std::uint64_t at,
                                                 std::uint64_t stride, std::uint64_t bytes) {
    return team_.reduce_packets(to, own, at, stride, bytes);
  }

 private:
  Team& team_;
};

}  // namespace tutti

// TUTTI_NATIVE_KERNEL(create_x, x, .name = "x", .collective = "allreduce", ...) at the end of the file, outside of any
// namespace, makes the function x known under create_x. After the name, in this order: .name, .collective,
// .scratch_bytes of each rank, .min_bytes, .max_bytes of one rank block, .blocks (1 to 64) of a launch and .threads (32
// to 512, whole warps), both of a call that does not say, .threads also the most; .refusal as in algorithm.h.
#if defined(__CUDACC__)
#define TUTTI_NATIVE_KERNEL(function, body, ...)   \
  namespace tutti::kernels {                       \
  struct function {                                \
    template <class Context>                       \
    static __device__ bool run(Context& context) { \
      return ::body(context);                      \
    }                                              \
  };                                               \
  }
#else
#include <tutti/plugin/kernel_host.h>
#endif
