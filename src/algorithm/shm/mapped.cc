// Algorithms on tensors that all ranks of the host map: read and written where they lie, no copy through staging.
//
// Steps: announce (the announcement names the tensors by arena offset), work, then one round of "done" so that no rank
// leaves while another still reads or writes its memory. Bytes a rank for all-reduce of B: reads B of n tensors, writes
// B in n tensors, each rank its n-th part. Latency: two line transfers. The zero-copy form of the direct reduce-scatter
// and all-gather; it needs no order between the parts because each is read and written by one rank only. What is copied
// crosses the memory once.
#include "algorithm/shm/exchange.h"
#include "algorithm/shm/shm_algorithms.h"

namespace tutti {
namespace {

// Which tensors must be mapped, on the ranks that have one.
enum class Needs { kInputs, kBoth, kEither };

class MappedAlgorithm : public ShmAlgorithm {
 public:
  explicit MappedAlgorithm(Collective collective, Needs needs = Needs::kInputs)
      : ShmAlgorithm(collective, "mapped", "reads and writes the tensors in place: all ranks of the host map them"),
        needs_(needs) {}

  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = refuse_hosts(shape)) return reason;
    if (shape.uneven) return "needs blocks of equal size";
    if (needs_ == Needs::kEither) {
      if (shape.mapped_input || shape.mapped_output) return nullptr;
      return "neither the inputs nor the outputs of all ranks are mapped (tutti.empty, use_shared_allocator)";
    }
    if (!shape.mapped_input) return "not all ranks' inputs are mapped (tutti.empty, use_shared_allocator)";
    if (needs_ == Needs::kBoth && !shape.mapped_output)
      return "not all ranks' outputs are mapped (tutti.empty, use_shared_allocator)";
    return nullptr;
  }

 protected:
  static std::byte* input(CallContext& c, const Call& call, int rank) noexcept {
    return rank == c.rank ? call.input.data(0) : c.host->arena(rank) + c.host->peer_record(rank).mapped_input;
  }
  static std::byte* output(CallContext& c, const Call& call, int rank) noexcept {
    return rank == c.rank ? call.output.data(0) : c.host->arena(rank) + c.host->peer_record(rank).mapped_output;
  }
  static bool has_input(CallContext& c, int rank) noexcept {
    return c.host->peer_record(rank).mapped_input != kNotMapped;
  }
  static bool has_output(CallContext& c, int rank) noexcept {
    return c.host->peer_record(rank).mapped_output != kNotMapped;
  }
  // `bytes` from every rank.
  static std::size_t all_of(std::size_t bytes, const CallContext& c) noexcept {
    return bytes * static_cast<std::size_t>(c.size);
  }
  // Copies what is not there already into an output of `bytes` in all.
  static void deliver(CallContext& c, std::size_t bytes, void* dst, const void* src, std::size_t size) noexcept {
    if (dst != src) delivery_of(*c.host, bytes)(dst, src, size);
  }
  // Everybody's input, from this rank's on.
  static void deliver_inputs(const Call& call, CallContext& c, std::size_t bytes) noexcept {
    for (int i = 0; i < c.size; ++i) {
      const int r = (c.rank + i) % c.size;
      deliver(c, all_of(bytes, c), call.output.data(r), input(c, call, r), bytes);
    }
  }

 private:
  const Needs needs_;
};

class MappedAllReduce final : public MappedAlgorithm {
 public:
  MappedAllReduce() : MappedAlgorithm(Collective::kAllReduce, Needs::kBoth) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const Partition parts(call.input.size(0), c.size);
    const std::size_t begin = parts.begin(c.rank);
    SourceList sources;
    TargetList targets;
    for (int i = 0; i < c.size; ++i) {
      const auto r = static_cast<std::size_t>(i);
      sources[r] = input(c, call, i) + begin;
      targets[r] = output(c, call, i) + begin;
    }
    cpu::reduce(targets.data(), c.size, sources.data(), c.size, parts.size(c.rank) / size_of(call.dtype), call.dtype,
                call.op, divisor_of(call, c.size));
    return finish(c);
  }
};

class MappedReduce final : public MappedAlgorithm {
 public:
  MappedReduce() : MappedAlgorithm(Collective::kReduce, Needs::kBoth) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const Partition parts(call.input.size(0), c.size);
    const std::size_t begin = parts.begin(c.rank);
    reduce_ranks(call, c, output(c, call, call.root) + begin, parts.size(c.rank),
                 [&](int r) noexcept { return input(c, call, r) + begin; });
    return finish(c);
  }
};

class MappedReduceScatter final : public MappedAlgorithm {
 public:
  MappedReduceScatter() : MappedAlgorithm(Collective::kReduceScatter) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    reduce_ranks(call, c, call.output.data(0), bytes,
                 [&](int r) noexcept { return input(c, call, r) + bytes * static_cast<std::size_t>(c.rank); });
    return finish(c);
  }
};

class MappedBroadcast final : public MappedAlgorithm {
 public:
  MappedBroadcast() : MappedAlgorithm(Collective::kBroadcast) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    if (c.rank != call.root) deliver(c, bytes, call.output.data(0), input(c, call, call.root), bytes);
    return finish(c);
  }
};

class MappedAllGather final : public MappedAlgorithm {
 public:
  MappedAllGather() : MappedAlgorithm(Collective::kAllGather) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    deliver_inputs(call, c, bytes);
    return finish(c);
  }
};

// The ranks write into the root's output, all at once; where that is not mapped, or lies in several tensors, the root
// reads their inputs.
class MappedGather final : public MappedAlgorithm {
 public:
  MappedGather() : MappedAlgorithm(Collective::kGather, Needs::kEither) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    if (has_output(c, call.root)) {
      std::byte* const own = output(c, call, call.root) + bytes * static_cast<std::size_t>(c.rank);
      deliver(c, all_of(bytes, c), own, call.input.data(0), bytes);
    } else if (c.rank == call.root) {
      deliver_inputs(call, c, bytes);
    }
    return finish(c);
  }
};

// The other way round: the ranks read the root's input; where that is not mapped, or lies in several tensors, the root
// writes into their outputs.
class MappedScatter final : public MappedAlgorithm {
 public:
  MappedScatter() : MappedAlgorithm(Collective::kScatter, Needs::kEither) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    if (has_input(c, call.root)) {
      const std::byte* const own = input(c, call, call.root) + bytes * static_cast<std::size_t>(c.rank);
      deliver(c, bytes, call.output.data(0), own, bytes);
    } else if (c.rank == call.root) {
      for (int i = 0; i < c.size; ++i) {
        const int r = (c.rank + i) % c.size;
        deliver(c, bytes, output(c, call, r), call.input.data(r), bytes);
      }
    }
    return finish(c);
  }
};

class MappedAllToAll final : public MappedAlgorithm {
 public:
  MappedAllToAll() : MappedAlgorithm(Collective::kAllToAll) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    for (int i = 0; i < c.size; ++i) {
      const int r = (c.rank + i) % c.size;
      const std::byte* const from = input(c, call, r) + bytes * static_cast<std::size_t>(c.rank);
      deliver(c, all_of(bytes, c), call.output.data(r), from, bytes);
    }
    return finish(c);
  }
};

}  // namespace

AlgorithmList mapped_algorithms() {
  return {std::make_shared<MappedAllReduce>(),     std::make_shared<MappedReduce>(),
          std::make_shared<MappedReduceScatter>(), std::make_shared<MappedBroadcast>(),
          std::make_shared<MappedAllGather>(),     std::make_shared<MappedGather>(),
          std::make_shared<MappedScatter>(),       std::make_shared<MappedAllToAll>()};
}

}  // namespace tutti
