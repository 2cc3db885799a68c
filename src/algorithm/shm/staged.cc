// Everything but all-reduce and reduce through staging areas: one exchange a collective.
//
// Bytes a rank: a filler copies what it sends once, a drainer copies or reduces what it needs once. Latency: one line
// transfer a round, hidden from the second round on.
#include "algorithm/shm/exchange.h"
#include "algorithm/shm/shm_algorithms.h"
#include "base/rounding.h"

namespace tutti {

std::shared_ptr<const Algorithm> staged_all_reduce();
std::shared_ptr<const Algorithm> staged_reduce();

namespace {

class StagedAlgorithm : public ShmAlgorithm {
 public:
  explicit StagedAlgorithm(Collective collective)
      : ShmAlgorithm(collective, "staged", "chunks cross through shared staging that stays in cache, pipelined") {}
  const char* refusal(const CallShape& shape) const noexcept override { return refuse_hosts(shape); }

 protected:
  // The largest block of any rank: what the number of rounds follows from. The same on all ranks.
  static std::size_t largest_block(const Call& call, CallContext& c, std::size_t equal) noexcept {
    if (!call.uneven) return equal;
    std::size_t most = c.record.largest;
    for (int r = 0; r < c.size; ++r) {
      if (r != c.rank) most = std::max<std::size_t>(most, c.host->peer_record(r).largest);
    }
    return most;
  }
  // The part of a chunk for each of n ranks, in whole lines. Of a few lines each, what a round costs would not be worth
  // that filling and draining overlap.
  static std::size_t part_bytes(const HostChannel& host, std::size_t block, int n) noexcept {
    constexpr std::size_t kLine = 64, kLeast = 16384;
    const auto ranks = static_cast<std::size_t>(n);
    const std::size_t most = host.stage_bytes() / kLeastDepth / ranks / kLine * kLine;
    const std::size_t least = std::min({most, kLeast, round_up(block, kLine)});
    return std::max({kLine, least, chunk_bytes(host, block * ranks) / ranks / kLine * kLine});
  }
};

// How a rank fills a chunk with a part for each other rank.
auto parts_for_others(const Call& call, CallContext& c, std::size_t part) noexcept {
  return [&call, &c, part](std::uint64_t t, std::byte* area) noexcept {
    for (int i = 1; i < c.size; ++i) {
      const int r = (c.rank + i) % c.size;
      const Window w(call.input.size(r), part, t);
      c.stage_writer.copy(area + static_cast<std::size_t>(r) * part, call.input.data(r) + w.begin, w.size);
    }
  };
}

// broadcast: the root fills, the others drain.
class StagedBroadcast final : public StagedAlgorithm {
 public:
  StagedBroadcast() : StagedAlgorithm(Collective::kBroadcast) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    const std::size_t chunk = chunk_bytes(*c.host, bytes);
    const Delivery deliver = delivery_of(*c.host, bytes);
    return exchange(
        c, chunk, rounds_of(bytes, chunk), Side::root(call.root), Side::others(call.root),
        [&](std::uint64_t t, std::byte* area) noexcept {
          const Window w(bytes, chunk, t);
          c.stage_writer.copy(area, call.input.data(0) + w.begin, w.size, c.size - 1);
        },
        [&](std::uint64_t t, const auto& area_of) noexcept {
          const Window w(bytes, chunk, t);
          deliver(call.output.data(0) + w.begin, area_of(call.root), w.size);
        });
  }
};

// all_gather and gather: all fill with their block, all (or the root) take every block. Blocks may be uneven.
class StagedGather final : public StagedAlgorithm {
 public:
  explicit StagedGather(Collective collective) : StagedAlgorithm(collective) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const bool rooted = call.collective == Collective::kGather;
    const std::size_t own = call.input.size(0);
    const std::size_t most = largest_block(call, c, own);
    const std::size_t chunk = chunk_bytes(*c.host, most);
    const Side fillers = rooted ? Side::others(call.root) : Side::all();
    const Side drainers = rooted ? Side::root(call.root) : Side::all();
    const Delivery deliver = delivery_of(*c.host, most * static_cast<std::size_t>(c.size));
    // Our own block goes chunk by chunk too: for the second copy the chunk still lies in our cache.
    const bool keeps = drainers.has(c.rank) && call.output.data(c.rank) != call.input.data(0);
    if (keeps && !fillers.has(c.rank)) deliver(call.output.data(c.rank), call.input.data(0), own);
    return exchange(
        c, chunk, rounds_of(most, chunk), fillers, drainers,
        [&](std::uint64_t t, std::byte* area) noexcept {
          const Window w(own, chunk, t);
          c.stage_writer.copy(area, call.input.data(0) + w.begin, w.size, rooted ? 1 : c.size - 1);
          if (keeps) deliver(call.output.data(c.rank) + w.begin, call.input.data(0) + w.begin, w.size);
        },
        [&](std::uint64_t t, const auto& area_of) noexcept {
          for (int i = 1; i < c.size; ++i) {
            const int r = (c.rank + i) % c.size;
            const Window w(call.output.size(r), chunk, t);
            deliver(call.output.data(r) + w.begin, area_of(r), w.size);
          }
        });
  }
};

// scatter and all_to_all: the root (or all) fill with a part for each other rank, each rank takes its own. A chunk is
// divided into one part a rank. Blocks may be uneven.
class StagedScatter final : public StagedAlgorithm {
 public:
  explicit StagedScatter(Collective collective) : StagedAlgorithm(collective) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const bool rooted = call.collective == Collective::kScatter;
    const std::size_t most = largest_block(call, c, rooted ? call.output.size(0) : call.input.size(0));
    const std::size_t part = part_bytes(*c.host, most, c.size);
    const std::size_t chunk = part * static_cast<std::size_t>(c.size);
    const Side fillers = rooted ? Side::root(call.root) : Side::all();
    const Side drainers = rooted ? Side::others(call.root) : Side::all();
    const Delivery deliver = delivery_of(*c.host, rooted ? most : most * static_cast<std::size_t>(c.size));
    if (fillers.has(c.rank)) {
      const int own = rooted ? 0 : c.rank;
      if (call.output.data(own) != call.input.data(c.rank)) {
        deliver(call.output.data(own), call.input.data(c.rank), call.input.size(c.rank));
      }
    }
    return exchange(c, chunk, rounds_of(most, part), fillers, drainers, parts_for_others(call, c, part),
                    [&](std::uint64_t t, const auto& area_of) noexcept {
                      for (int i = 1; i < c.size; ++i) {
                        const int r = (c.rank + i) % c.size;
                        if (!fillers.has(r)) continue;
                        const int own = rooted ? 0 : r;
                        const Window w(call.output.size(own), part, t);
                        const std::byte* from = area_of(r) + static_cast<std::size_t>(c.rank) * part;
                        deliver(call.output.data(own) + w.begin, from, w.size);
                      }
                    });
  }
};

// reduce_scatter: all fill with a part for each other rank, each reduces its own.
class StagedReduceScatter final : public StagedAlgorithm {
 public:
  StagedReduceScatter() : StagedAlgorithm(Collective::kReduceScatter) {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t most = largest_block(call, c, call.output.size(0));
    const std::size_t part = part_bytes(*c.host, most, c.size);
    const std::size_t chunk = part * static_cast<std::size_t>(c.size);
    return exchange(
        c, chunk, rounds_of(most, part), Side::all(), Side::all(), parts_for_others(call, c, part),
        [&](std::uint64_t t, const auto& area_of) noexcept {
          const Window w(call.output.size(0), part, t);
          reduce_ranks(call, c, call.output.data(0) + w.begin, w.size, [&](int r) noexcept -> const std::byte* {
            return r == c.rank ? call.input.data(r) + w.begin : area_of(r) + static_cast<std::size_t>(c.rank) * part;
          });
        });
  }
};

}  // namespace

AlgorithmList staged_algorithms() {
  return {staged_all_reduce(),
          std::make_shared<StagedBroadcast>(),
          staged_reduce(),
          std::make_shared<StagedGather>(Collective::kAllGather),
          std::make_shared<StagedGather>(Collective::kGather),
          std::make_shared<StagedScatter>(Collective::kScatter),
          std::make_shared<StagedScatter>(Collective::kAllToAll),
          std::make_shared<StagedReduceScatter>()};
}

}  // namespace tutti
