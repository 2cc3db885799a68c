// A collective algorithm of your own in C++, compiled at run time by `tutti.compile_native`. This header is all that it
// needs: nothing is linked, and what crosses to the library are the C structures of abi.h.
//
//   #include <tutti/plugin/algorithm.h>
//
//   bool all_gather(tutti::plugin::Context& c) {
//     std::memcpy(c.scratch(c.rank()), c.input(), c.block_bytes());       // to where the others can read it
//     if (!c.barrier()) return false;                                      // all have written
//     for (int r = 0; r < c.size(); ++r) c.copy(c.output() + r * c.block_bytes(), c.scratch(r), c.block_bytes());
//     return true;
//   }
//   TUTTI_NATIVE_ALGORITHM(create_all_gather, .name = "my_all_gather", .collective = "allgather",
//                          .scratch_bytes = 1 << 20, .max_bytes = 1 << 20, .run = all_gather)
//
// In Python `module.create_all_gather()` then gives what `tutti.Algorithm.create_from_native_capsule` takes.
//
// All ranks are on one host. The function runs on every rank, with the same arguments but for rank and memory, on the
// thread of the call. When it returns, the rank's output is complete and its input may be changed. Scratch belongs to
// the algorithm and keeps its contents between calls; no rank is still in an earlier call when one begins. Signals do
// not outlive their call. A plug-in is one source file; it may not start threads that touch the context, nor throw out
// of the C functions it calls back; an exception that leaves `run` fails the call.
#pragma once

#include <tutti/plugin/abi.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string_view>

namespace tutti::plugin {

class Context {
 public:
  explicit Context(const TuttiPluginCall& call) noexcept : call_(call) {}

  int rank() const noexcept { return call_.rank; }
  int size() const noexcept { return call_.size; }
  // Of broadcast, reduce, gather and scatter.
  int root() const noexcept { return call_.root; }

  // This rank's memory. A block is one rank's share: an all-reduce has an input and an output of one block, an
  // all-gather an output of size() blocks, a reduce-scatter and an all-to-all an input of size(). They may overlap as
  // the collective allows it: the same buffer, or a rank's own block of the larger one.
  const std::byte* input() const noexcept { return static_cast<const std::byte*>(call_.input); }
  std::byte* output() const noexcept { return static_cast<std::byte*>(call_.output); }
  std::size_t input_bytes() const noexcept { return call_.input_bytes; }
  std::size_t output_bytes() const noexcept { return call_.output_bytes; }
  std::size_t block_bytes() const noexcept { return call_.block_bytes; }
  std::size_t element_bytes() const noexcept { return call_.element_bytes; }
  std::string_view dtype() const noexcept { return call_.dtype; }
  std::string_view op() const noexcept { return call_.op; }

  // Memory of any rank that all ranks may read and write: 128-byte aligned, scratch_bytes() of each.
  std::byte* scratch(int of_rank) const noexcept { return static_cast<std::byte*>(call_.scratch[of_rank]); }
  std::size_t scratch_bytes() const noexcept { return call_.scratch_bytes; }
  // Peers' tensors, where all ranks' tensors are mapped (tutti.RawBuffer, tutti.empty); else null, on all ranks alike.
  // A peer may touch its tensor until the first signal between the two, and after the last.
  const std::byte* mapped_input(int of_rank) const noexcept {
    return call_.mapped_inputs != nullptr ? static_cast<const std::byte*>(call_.mapped_inputs[of_rank]) : nullptr;
  }
  std::byte* mapped_output(int of_rank) const noexcept {
    return call_.mapped_outputs != nullptr ? static_cast<std::byte*>(call_.mapped_outputs[of_rank]) : nullptr;
  }

  // What this rank has written before signal() the peer reads after the matching wait(); what it has read before it,
  // the peer may overwrite. The k-th wait for a peer is for its k-th signal of this call.
  // wait() returns false when the signal cannot come any more: past the deadline, after an abort, when the peer has
  // died or failed. Then return false; the library raises what it knows.
  [[nodiscard]] bool wait(int for_peer) noexcept { return call_.wait(call_.library, for_peer) != 0; }
  bool signal(int to_peer) noexcept { return call_.signal(call_.library, to_peer) != 0; }
  // Each rank waits until all have come here.
  [[nodiscard]] bool barrier() noexcept {
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && !signal(r)) return false;
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && !wait(r)) return false;
    }
    return true;
  }

  // Any size, no overlap; nothing if both are the same.
  void copy(void* to, const void* from, std::size_t bytes) const noexcept {
    if (to != from) call_.copy(call_.library, to, from, bytes);
  }
  // to[i] = from[0][i] op from[1][i] op ... in this order, with the call's element type and operation, narrow types in
  // fp32 and rounded once. `to` may be one of the sources. An average is the sum: divide() at the end.
  void reduce(void* to, const void* const* from, int sources, std::size_t elements) const noexcept {
    call_.reduce(call_.library, to, from, sources, elements);
  }
  // Finishes an average in place; nothing for other operations.
  void divide(void* data, std::size_t elements) const noexcept {
    call_.reduce(call_.library, data, nullptr, 0, elements);
  }

  // A number that the caller passed in `extras`.
  std::int64_t extra(const char* name, std::int64_t otherwise = 0) const noexcept {
    return call_.extra(call_.library, name, otherwise);
  }

  // Packets carry 4 bytes and a flag in a word, so that they need no signal: of each call, a word is stored once. What
  // has packets in scratch has nothing else there, ever. Authors of kernels use kernel.cuh.
  std::uint32_t flag() const noexcept { return call_.flag; }
  [[nodiscard]] bool await_packets(int of_peer, const std::uint64_t* words, std::uint64_t count) noexcept {
    return call_.await_packets(call_.library, of_peer, words, count) != 0;
  }
  void ring(int peer) noexcept { call_.ring(call_.library, peer); }

  // Fails the call, on all ranks; its error carries the reason. Returns false: `return c.fail("...")`.
  bool fail(const char* reason) const noexcept {
    call_.fail(call_.library, reason);
    return false;
  }

 private:
  const TuttiPluginCall& call_;
};

// What TUTTI_NATIVE_ALGORITHM takes after the name of the function, as designated initialisers in this order.
struct Description {
  const char* name = nullptr;
  const char* collective = nullptr;  // "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", ...
  std::uint64_t scratch_bytes = 0;   // of each rank
  std::uint64_t min_bytes = 0;       // calls with smaller or larger blocks are refused
  std::uint64_t max_bytes = ~std::uint64_t{0};
  bool (*run)(Context&) = nullptr;  // false: the call has failed
  // Null, or the reason why not; asked before anything is sent. Equal answers on all ranks.
  const char* (*refusal)(const char* dtype, const char* op, std::uint64_t block_bytes, std::int32_t ranks) = nullptr;
};

namespace {  // a plug-in's own, so that two of them in a process have nothing in common

const TuttiPluginAlgorithm* first_algorithm = nullptr;

template <bool (*kRun)(Context&)>
int run_guarded(const TuttiPluginCall* call) noexcept {
  Context context(*call);
  try {
    return kRun(context) ? 1 : 0;
  } catch (const std::exception& error) {
    context.fail(error.what());
  } catch (...) {
    context.fail("it threw something that is no std::exception");
  }
  return 0;
}

class Registered {
 public:
  // `d`: a Description, or one of a kernel (kernel.cuh).
  template <class Any>
  Registered(const char* function, const Any& d, int (*run)(const TuttiPluginCall*), int blocks = 0,
             int threads = 0) noexcept
      : entry_{function, d.name,    d.collective, d.scratch_bytes, d.min_bytes,    d.max_bytes,
               run,      d.refusal, blocks,       threads,         first_algorithm} {
    first_algorithm = &entry_;
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  const TuttiPluginAlgorithm entry_;
};

}  // namespace
}  // namespace tutti::plugin

// Makes an algorithm known under `function`: TUTTI_NATIVE_ALGORITHM(create_x, .name = "x", .collective = "allreduce",
// .run = run_x).
#define TUTTI_NATIVE_ALGORITHM(function, ...)                                                                        \
  namespace {                                                                                                        \
  constexpr ::tutti::plugin::Description function##_description = {__VA_ARGS__};                                     \
  static_assert(function##_description.name != nullptr, "an algorithm has a .name");                                 \
  static_assert(function##_description.collective != nullptr, "and a .collective");                                  \
  static_assert(function##_description.run != nullptr, "and a .run");                                                \
  const ::tutti::plugin::Registered function##_registered(#function, function##_description,                         \
                                                          ::tutti::plugin::run_guarded<function##_description.run>); \
  }

extern "C" __attribute__((visibility("default"), used)) inline std::uint32_t tutti_plugin_version() noexcept {
  return kTuttiPluginVersion;
}
extern "C" __attribute__((visibility("default"), used)) inline const TuttiPluginAlgorithm*
tutti_plugin_algorithms() noexcept {
  return tutti::plugin::first_algorithm;
}
