// One-round algorithms: the payload lies beside the announcement.
//
// Steps: 1. Bytes a rank: what it sends, once, and what it needs, read from the senders' caches. Latency: one line
// transfer from each sender, overlapped. A flat exchange, known as the one-shot or direct algorithm for shared memory
// (as in MPI implementations' shared-memory collectives); the announcement doubles as flag, so a payload of up to
// kInlineBytes costs a single cache line.
#include "algorithm/shm/shm_algorithm.h"
#include "algorithm/shm/shm_algorithms.h"
#include "base/collective_traits.h"

namespace tutti {
namespace {

// Largest payload of a rank: from there on the pipeline through staging is faster, unless ranks share cores, where
// every further round costs a switch of threads.
constexpr std::size_t kSlotLimit = 2048;
constexpr std::size_t kCrowdedSlotLimit = 32768;
// In one round every rank adds what all have, so with many ranks the whole takes time as their square: of 32 ranks on
// 16 cores, 32 KB took 205 us so and 64 KB 80 us through staging.
constexpr std::size_t kCrowdedAddends = 256 << 10;

class SlotAlgorithm : public ShmAlgorithm {
 public:
  explicit SlotAlgorithm(Collective collective)
      : ShmAlgorithm(collective, "slots", "one round: payloads lie beside the announcements, every reader takes them") {
  }

  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = refuse_hosts(shape)) return reason;
    if (shape.announced) return "announces the call itself";
    if (shape.uneven) return "needs blocks of equal size";
    const std::size_t blocks = traits_of(shape.collective).input_blocks ? static_cast<std::size_t>(shape.ranks) : 1;
    if (shape.crowded) {
      if (shape.collective == Collective::kAllReduce &&
          shape.bytes * static_cast<std::size_t>(shape.ranks) > kCrowdedAddends) {
        return "every rank would add more than 256 KB";
      }
      return shape.bytes > kCrowdedSlotLimit / blocks ? "a rank's payload is larger than a slot of 32 KB" : nullptr;
    }
    return shape.bytes > kSlotLimit / blocks ? "a rank's payload is larger than the 2 KB of one round" : nullptr;
  }
  bool announces() const noexcept override { return true; }

 protected:
  // Announces with `bytes` of payload, if any, which one peer takes, or all do.
  static Outcome announce(CallContext& c, const void* payload, std::size_t bytes, bool to_all) noexcept {
    if (Outcome outcome = c.host->begin(c.record, c.deadline); !outcome.ok()) return outcome;
    c.slot_writer.copy(c.host->payload_area(bytes), payload, bytes, to_all ? c.size - 1 : 1);
    c.host->announce();
    return kOkOutcome;
  }
  // The same with `bytes` for each rank, but none for this one if it is to keep its own.
  static Outcome announce_blocks(const Call& call, CallContext& c, std::size_t bytes, bool keeps_own) noexcept {
    if (Outcome outcome = c.host->begin(c.record, c.deadline); !outcome.ok()) return outcome;
    std::byte* area = c.host->payload_area(bytes * static_cast<std::size_t>(c.size));
    for (int r = 0; r < c.size; ++r) {
      if (r != c.rank || !keeps_own) c.slot_writer.copy(area + r * bytes, call.input.data(r), bytes);
    }
    c.host->announce();
    return kOkOutcome;
  }
  // Copies everybody's payload into its block of the output.
  static void collect_payloads(const Call& call, CallContext& c, std::size_t bytes) noexcept {
    for (int r = 0; r < c.size; ++r) {
      if (r == c.rank) {
        copy_unless_same(call.output.data(r), call.input.data(0), bytes);
      } else {
        cpu::copy_from_peer(call.output.data(r), c.host->peer_payload(r, bytes), bytes);
      }
    }
  }
  // Of a root that takes from all: they run ahead of it.
  static void look_ahead(CallContext& c) noexcept {
    for (int r = 0; r < c.size; ++r) {
      if (r != c.rank) c.host->look_ahead(r);
    }
  }
  // Reduces `bytes` at `offset` of everybody's payload.
  static void reduce_payloads(const Call& call, CallContext& c, std::size_t payload, std::size_t offset,
                              std::size_t bytes) noexcept {
    reduce_ranks(call, c, call.output.data(0), bytes, [&](int r) noexcept {
      return (r == c.rank ? c.host->payload_area(payload) : c.host->peer_payload(r, payload)) + offset;
    });
  }
};

class SlotBarrier final : public SlotAlgorithm {
 public:
  SlotBarrier() : SlotAlgorithm(Collective::kBarrier) {}
  Outcome run(const Call&, CallContext& c) const noexcept override {
    if (Outcome outcome = c.host->begin_and_announce(c.record, c.deadline); !outcome.ok()) return outcome;
    return c.host->await_all(c.deadline);
  }
};

// all_reduce and reduce: all, or the root, add what all have.
class SlotReduce final : public SlotAlgorithm {
 public:
  using SlotAlgorithm::SlotAlgorithm;
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    const bool rooted = has_root(call.collective);
    if (Outcome outcome = announce(c, call.input.data(0), bytes, !rooted); !outcome.ok()) return outcome;
    if (rooted && c.rank != call.root) return kOkOutcome;
    if (Outcome outcome = c.host->await_all(c.deadline); !outcome.ok()) return outcome;
    reduce_payloads(call, c, bytes, 0, bytes);
    if (rooted) look_ahead(c);
    return kOkOutcome;
  }
};

class SlotReduceScatter final : public SlotAlgorithm {
 public:
  SlotReduceScatter() : SlotAlgorithm(Collective::kReduceScatter) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    const std::size_t payload = bytes * static_cast<std::size_t>(c.size);
    if (Outcome outcome = announce_blocks(call, c, bytes, /*keeps_own=*/false); !outcome.ok()) return outcome;
    if (Outcome outcome = c.host->await_all(c.deadline); !outcome.ok()) return outcome;
    reduce_payloads(call, c, payload, bytes * static_cast<std::size_t>(c.rank), bytes);
    return kOkOutcome;
  }
};

class SlotBroadcast final : public SlotAlgorithm {
 public:
  SlotBroadcast() : SlotAlgorithm(Collective::kBroadcast) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    if (c.rank == call.root) return announce(c, call.input.data(0), call.input.size(0), /*to_all=*/true);
    const std::size_t bytes = call.output.size(0);
    if (Outcome outcome = c.host->begin_and_announce(c.record, c.deadline); !outcome.ok()) return outcome;
    if (Outcome outcome = c.host->await(call.root, c.deadline); !outcome.ok()) return outcome;
    cpu::copy_from_peer(call.output.data(0), c.host->peer_payload(call.root, bytes), bytes);
    c.host->look_ahead(call.root);
    return kOkOutcome;
  }
};

// all_gather and gather: all, or the root, take every block.
class SlotGather final : public SlotAlgorithm {
 public:
  using SlotAlgorithm::SlotAlgorithm;
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    const bool rooted = has_root(call.collective), takes = !rooted || c.rank == call.root;
    const std::size_t given = rooted && takes ? 0 : bytes;
    if (Outcome outcome = announce(c, call.input.data(0), given, !rooted); !outcome.ok()) return outcome;
    if (!takes) return kOkOutcome;
    if (Outcome outcome = c.host->await_all(c.deadline); !outcome.ok()) return outcome;
    collect_payloads(call, c, bytes);
    if (rooted) look_ahead(c);
    return kOkOutcome;
  }
};

class SlotScatter final : public SlotAlgorithm {
 public:
  SlotScatter() : SlotAlgorithm(Collective::kScatter) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    const std::size_t payload = bytes * static_cast<std::size_t>(c.size);
    if (c.rank == call.root) {
      const Outcome outcome = announce_blocks(call, c, bytes, /*keeps_own=*/true);
      if (outcome.ok()) copy_unless_same(call.output.data(0), call.input.data(c.rank), bytes);
      return outcome;
    }
    if (Outcome outcome = c.host->begin_and_announce(c.record, c.deadline); !outcome.ok()) return outcome;
    if (Outcome outcome = c.host->await(call.root, c.deadline); !outcome.ok()) return outcome;
    cpu::copy_from_peer(call.output.data(0), c.host->peer_payload(call.root, payload) + c.rank * bytes, bytes);
    c.host->look_ahead(call.root);
    return kOkOutcome;
  }
};

class SlotAllToAll final : public SlotAlgorithm {
 public:
  SlotAllToAll() : SlotAlgorithm(Collective::kAllToAll) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    const std::size_t payload = bytes * static_cast<std::size_t>(c.size);
    if (Outcome outcome = announce_blocks(call, c, bytes, /*keeps_own=*/true); !outcome.ok()) return outcome;
    if (Outcome outcome = c.host->await_all(c.deadline); !outcome.ok()) return outcome;
    for (int r = 0; r < c.size; ++r) {
      const std::byte* from = r == c.rank ? call.input.data(r) : c.host->peer_payload(r, payload) + c.rank * bytes;
      cpu::copy_from_peer(call.output.data(r), from, bytes);
    }
    return kOkOutcome;
  }
};

}  // namespace

AlgorithmList slot_algorithms() {
  return {std::make_shared<SlotBarrier>(),
          std::make_shared<SlotReduce>(Collective::kAllReduce),
          std::make_shared<SlotReduceScatter>(),
          std::make_shared<SlotReduce>(Collective::kReduce),
          std::make_shared<SlotBroadcast>(),
          std::make_shared<SlotGather>(Collective::kAllGather),
          std::make_shared<SlotGather>(Collective::kGather),
          std::make_shared<SlotScatter>(),
          std::make_shared<SlotAllToAll>()};
}

}  // namespace tutti
