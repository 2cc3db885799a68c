// Algorithms on tensors that all ranks of the host map: read and written where they lie, no copy through staging.
//
// Steps: announce (the announcement names the tensors by arena offset), work, then one round of "done" so that no rank
// leaves while another still reads or writes its memory. Bytes a rank for all-reduce of B: reads B of n tensors, writes
// B in n tensors, each rank its n-th part. Latency: two line transfers. The zero-copy form of the direct reduce-scatter
// and all-gather; it needs no order between the parts because each is read and written by one rank only.
#include "algorithm/shm/shm_algorithm.h"
#include "algorithm/shm/shm_algorithms.h"

namespace tutti {
namespace {

class MappedAlgorithm : public ShmAlgorithm {
 public:
  explicit MappedAlgorithm(Collective collective)
      : ShmAlgorithm(collective, "mapped", "reads and writes the tensors in place: all ranks of the host map them") {}

  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = refuse_hosts(shape)) return reason;
    if (shape.uneven) return "needs blocks of equal size";
    if (needs_input() && !shape.mapped_input)
      return "not all ranks' inputs are mapped (tutti.empty, use_shared_allocator)";
    if (needs_output() && !shape.mapped_output)
      return "not all ranks' outputs are mapped (tutti.empty, use_shared_allocator)";
    return nullptr;
  }

 protected:
  virtual bool needs_input() const noexcept { return true; }
  virtual bool needs_output() const noexcept { return false; }

  static std::byte* input(CallContext& c, const Call& call, int rank) noexcept {
    return rank == c.rank ? call.input.data(0) : c.host->arena(rank) + c.host->peer_record(rank).mapped_input;
  }
  static std::byte* output(CallContext& c, const Call& call, int rank) noexcept {
    return rank == c.rank ? call.output.data(0) : c.host->arena(rank) + c.host->peer_record(rank).mapped_output;
  }
  // Nobody returns before everybody has finished with everybody's memory.
  static Outcome finish(CallContext& c) noexcept {
    const std::uint64_t done = c.host->step_base() + 1;
    c.host->publish(StepLane::kDrained, done);
    const Outcome outcome = c.host->await_step_all(StepLane::kDrained, done, c.deadline);
    c.host->advance_steps(1);
    return outcome;
  }
};

class MappedAllReduce final : public MappedAlgorithm {
 public:
  MappedAllReduce() : MappedAlgorithm(Collective::kAllReduce) {}
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

 protected:
  bool needs_output() const noexcept override { return true; }
};

class MappedReduce final : public MappedAlgorithm {
 public:
  MappedReduce() : MappedAlgorithm(Collective::kReduce) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const Partition parts(call.input.size(0), c.size);
    const std::size_t begin = parts.begin(c.rank);
    SourceList sources;
    for (int i = 0; i < c.size; ++i) sources[static_cast<std::size_t>(i)] = input(c, call, i) + begin;
    void* target = output(c, call, call.root) + begin;
    cpu::reduce(&target, 1, sources.data(), c.size, parts.size(c.rank) / size_of(call.dtype), call.dtype, call.op,
                divisor_of(call, c.size));
    return finish(c);
  }

 protected:
  bool needs_output() const noexcept override { return true; }
};

class MappedReduceScatter final : public MappedAlgorithm {
 public:
  MappedReduceScatter() : MappedAlgorithm(Collective::kReduceScatter) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    SourceList sources;
    for (int i = 0; i < c.size; ++i) {
      sources[static_cast<std::size_t>(i)] = input(c, call, i) + bytes * static_cast<std::size_t>(c.rank);
    }
    void* target = call.output.data(0);
    cpu::reduce(&target, 1, sources.data(), c.size, bytes / size_of(call.dtype), call.dtype, call.op,
                divisor_of(call, c.size));
    return finish(c);
  }
};

class MappedBroadcast final : public MappedAlgorithm {
 public:
  MappedBroadcast() : MappedAlgorithm(Collective::kBroadcast) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    if (c.rank != call.root) cpu::copy(call.output.data(0), input(c, call, call.root), call.output.size(0));
    return finish(c);
  }
};

class MappedAllGather final : public MappedAlgorithm {
 public:
  MappedAllGather() : MappedAlgorithm(Collective::kAllGather) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    copy_unless_same(call.output.data(c.rank), call.input.data(0), bytes);
    for (int i = 1; i < c.size; ++i) {
      const int r = (c.rank + i) % c.size;
      cpu::copy(call.output.data(r), input(c, call, r), bytes);
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
      cpu::copy(call.output.data(r), input(c, call, r) + bytes * static_cast<std::size_t>(c.rank), bytes);
    }
    return finish(c);
  }
};

}  // namespace

AlgorithmList mapped_algorithms() {
  return {std::make_shared<MappedAllReduce>(),     std::make_shared<MappedReduce>(),
          std::make_shared<MappedReduceScatter>(), std::make_shared<MappedBroadcast>(),
          std::make_shared<MappedAllGather>(),     std::make_shared<MappedAllToAll>()};
}

}  // namespace tutti
