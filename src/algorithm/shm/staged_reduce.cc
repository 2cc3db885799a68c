// All-reduce and reduce through staging areas.
//
// Each chunk is divided among the ranks. Round t of the pipeline: copy the other ranks' parts of chunk t into our area;
// reduce our part of chunk t-1 from all areas, in rank order, into our result area and, where we take the result, our
// tensor; take the other parts of chunk t-2 from the ranks that reduced them. Reduce-scatter and all-gather, or gather
// to the root (Rabenseifner's decompositions, direct exchange), interleaved, so that the three stages of different
// chunks overlap between ranks.
//
// Bytes a rank, for n ranks and a tensor of B: stages B(n-1)/n, reads B of n sources, stages B/n, copies B(n-1)/n if it
// takes the result. Latency: two line transfers a round, hidden from the third round on.
//
// Of few ranks or bytes, or where ranks share cores, the root of a reduce adds everything itself: fewer bytes in all,
// but n of B on one rank.
//
// Why four places are enough, with two counters and no third for "copied out": a rank refills round t-4's place after
// it has copied out t-3, for which it awaited that all peers have reduced t-3. It overwrites the result of u-4 after it
// has awaited that all peers have filled u, which they do after having copied out u-3. All ranks await so, whether or
// not they take the result.
#include "algorithm/shm/exchange.h"
#include "algorithm/shm/shm_algorithms.h"

namespace tutti {

namespace {

// A reduce is divided where the root would add so many bytes beyond two tensors: below that, one round of counters more
// costs what it saves.
constexpr std::size_t kLeastAdded = 96 << 10;

class StagedReduction : public ShmAlgorithm {
 public:
  using ShmAlgorithm::ShmAlgorithm;
  const char* refusal(const CallShape& shape) const noexcept override { return refuse_hosts(shape); }

 protected:
  // `takers`: who has the result in the end.
  static Outcome run_divided(const Call& call, CallContext& c, Side takers) noexcept {
    Pass pass(call, c, takers.has(c.rank), takers.only != c.rank);
    HostChannel& host = *c.host;
    const std::uint64_t base = host.step_base();
    for (std::uint64_t t = 0; t < pass.rounds + 2; ++t) {
      if (t < pass.rounds) {
        pass.fill(t);
        host.publish(StepLane::kFilled, base + t + 1);
      }
      if (t >= 1 && t <= pass.rounds) {
        const std::uint64_t u = t - 1;
        if (Outcome outcome = host.await_step_all(StepLane::kFilled, base + u + 1, c.deadline); !outcome.ok())
          return outcome;
        pass.reduce(u);
        host.publish(StepLane::kDrained, base + u + 1);
      }
      if (t >= 2) {
        const std::uint64_t v = t - 2;
        for (int i = 1; i < c.size; ++i) {
          const int peer = (c.rank + i) % c.size;
          if (Outcome outcome = host.await_step(peer, StepLane::kDrained, base + v + 1, c.deadline); !outcome.ok()) {
            return outcome;
          }
          if (pass.takes) pass.copy_out(v, peer);
        }
      }
    }
    host.advance_steps(pass.rounds);
    return kOkOutcome;
  }

 private:
  struct Pass {
    const Call& call;
    CallContext& c;
    bool takes, gives;  // whether this rank, and whether another, takes what this rank reduces
    std::size_t bytes, chunk;
    std::uint64_t rounds;
    StageRing inputs, results;

    Pass(const Call& call_, CallContext& c_, bool takes_, bool gives_) noexcept
        : call(call_),
          c(c_),
          takes(takes_),
          gives(gives_),
          bytes(call_.input.size(0)),
          chunk(std::min(chunk_bytes(*c.host, bytes), c.host->stage_bytes() / 2 / kLeastDepth)),
          rounds(rounds_of(bytes, chunk)),
          inputs(*c.host, chunk, 0, c.host->stage_bytes() / 2),
          results(*c.host, chunk, c.host->stage_bytes() / 2, c.host->stage_bytes() / 2) {}
    void fill(std::uint64_t t) noexcept {
      const Window w(bytes, chunk, t);
      const Partition parts(w.size, c.size);
      std::byte* to = inputs.own(t);
      const std::byte* from = call.input.data(0) + w.begin;
      // Two copies: everything before our part and everything after it.
      const std::size_t begin = parts.begin(c.rank);
      const std::size_t end = begin + parts.size(c.rank);
      c.stage_writer.copy(to, from, begin);
      c.stage_writer.copy(to + end, from + end, w.size - end);
    }
    void reduce(std::uint64_t u) noexcept {
      const Window w(bytes, chunk, u);
      const Partition parts(w.size, c.size);
      const std::size_t begin = parts.begin(c.rank);
      const auto reduce_part = [&](std::byte* to, std::size_t at, std::size_t size) noexcept {
        reduce_ranks(call, c, to, size, [&](int r) noexcept -> const std::byte* {
          return r == c.rank ? call.input.data(0) + w.begin + at : inputs.at(r, u) + at;
        });
      };
      if (!gives) return reduce_part(call.output.data(0) + w.begin + begin, begin, parts.size(c.rank));
      std::byte* const staged = results.own(u);
      if (!takes) return reduce_part(staged, begin, parts.size(c.rank));
      // In blocks that the first-level cache holds, because each is read again to be staged.
      constexpr std::size_t kBlock = 16384;
      for (std::size_t done = 0; done < parts.size(c.rank); done += kBlock) {
        const std::size_t at = begin + done;
        const std::size_t size = std::min(kBlock, parts.size(c.rank) - done);
        std::byte* const target = call.output.data(0) + w.begin + at;
        reduce_part(target, at, size);
        c.stage_writer.copy(staged + done, target, size, c.size - 1);
      }
    }
    void copy_out(std::uint64_t v, int peer) const noexcept {
      const Window w(bytes, chunk, v);
      const Partition parts(w.size, c.size);
      const std::size_t size = parts.size(peer);
      cpu::copy_from_peer(call.output.data(0) + w.begin + parts.begin(peer), results.at(peer, v), size);
    }
  };
};

class StagedAllReduce final : public StagedReduction {
 public:
  StagedAllReduce()
      : StagedReduction(Collective::kAllReduce, "staged",
                        "reduce-scatter and all-gather in cache-sized chunks through shared staging, pipelined") {}
  Outcome run(const Call& call, CallContext& c) const noexcept override { return run_divided(call, c, Side::all()); }
};

class StagedReduce final : public StagedReduction {
 public:
  StagedReduce()
      : StagedReduction(
            Collective::kReduce, "staged",
            "chunks cross through shared staging that stays in cache, pipelined; many ranks share the adding") {}
  Outcome run(const Call& call, CallContext& c) const noexcept override {
    const std::size_t added = call.input.size(0) * static_cast<std::size_t>(c.size - 2);
    if (added >= kLeastAdded && !c.host->crowded()) return run_divided(call, c, Side::root(call.root));
    return run_at_root(call, c);
  }

 private:
  // All but the root fill, the root reduces.
  static Outcome run_at_root(const Call& call, CallContext& c) noexcept {
    const std::size_t bytes = call.input.size(0);
    const std::size_t chunk = chunk_bytes(*c.host, bytes);
    return exchange(
        c, chunk, rounds_of(bytes, chunk), Side::others(call.root), Side::root(call.root),
        [&](std::uint64_t t, std::byte* area) noexcept {
          const Window w(bytes, chunk, t);
          c.stage_writer.copy(area, call.input.data(0) + w.begin, w.size);
        },
        [&](std::uint64_t t, const auto& area_of) noexcept {
          const Window w(bytes, chunk, t);
          reduce_ranks(call, c, call.output.data(0) + w.begin, w.size, [&](int r) noexcept -> const std::byte* {
            return r == c.rank ? call.input.data(0) + w.begin : area_of(r);
          });
        });
  }
};

}  // namespace

std::shared_ptr<const Algorithm> staged_all_reduce() { return std::make_shared<StagedAllReduce>(); }
std::shared_ptr<const Algorithm> staged_reduce() { return std::make_shared<StagedReduce>(); }

}  // namespace tutti
