// Algorithms in which several ranks of each host carry a share of the call among the hosts: for large messages.
//
// all_reduce: the ranks of a host reduce a share each through staging; the ranks that have the same share on all hosts
// reduce it among them; the ranks of a host gather the shares. There are as many carriers on a host as the host with
// the fewest ranks has; its other ranks give their inputs and take the result. With h hosts, m carriers a host, a
// message of B bytes: 2 (h-1)/h B cross the network a host, where one ring of all n ranks sends 2 (n-1)/n B; each
// carrier sends an m-th of it. On the host each rank stages and reads about 2 B. Latency: that of the algorithm over
// messages for h ranks, and two pipelines.
//
// Source: the "hierarchical" or "2D" all-reduce; Jia et al., "Highly scalable deep learning training system with
// mixed-precision", 2018, and the reduce-scatter and all-gather of Rabenseifner.
//
// The sum on a host runs in the order of its ranks, then that of the hosts is the ring's: the same for all ranks, since
// each share is reduced once and copied. Sums of bf16 are accumulated in fp32 and rounded twice, on the host and among
// the hosts, so that what crosses the network is half of what fp32 takes; averages are divided on the host, which saves
// a third rounding. Other narrow types have not fp32's range: what fits in all may not fit on a host.
#include "algorithm/shm/exchange.h"
#include "algorithm/two_level/two_level_algorithm.h"
#include "algorithm/two_level/two_level_algorithms.h"

namespace tutti {
namespace {

class CarriersAllReduce final : public TwoLevelAlgorithm {
 public:
  CarriersAllReduce()
      : TwoLevelAlgorithm(Collective::kAllReduce, "carriers",
                          "a host's ranks reduce a share each, reduce it with the other hosts', and gather the shares"),
        exchange_(Collective::kAllReduce) {}
  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = TwoLevelAlgorithm::refusal(shape)) return reason;
    return rounds_partials(shape.dtype, shape.op) && !rounds_twice(shape.dtype, shape.op)
               ? "partial sums of a narrow type would be rounded on every host"
               : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& c) const noexcept override {
    const Pass pass(call, c);
    if (!pass.carries()) return NetCall::bytes_for(0);
    return exchange_.memory(part_of(call, nullptr, pass.share_bytes()), pass.share_bytes(), c);
  }

 private:
  Outcome execute(const Call& call, CallContext& c) const override {
    const Pass pass(call, c);
    if (Outcome outcome = pass.reduce_shares(c); !outcome.ok()) return outcome;
    if (pass.carries()) {
      const Call part = part_of(call, pass.share(), pass.share_bytes());
      AmongHosts among(c, [&](int) { return pass.place; });
      if (Outcome outcome = exchange_.run(part, pass.share_bytes(), among.context()); !outcome.ok()) return outcome;
      if (!pass.divides_on_host()) average(call, pass.share(), pass.share_bytes(), c.size);
    }
    return pass.gather_shares(c);
  }

  static bool rounds_twice(DataType dtype, ReduceOp op) noexcept {
    return rounds_partials(dtype, op) && dtype == DataType::kBfloat16;
  }

  struct Pass {
    const Call& call;
    const int place;
    const int carriers;
    const std::size_t bytes;
    const Partition shares;

    Pass(const Call& call_, const CallContext& c) noexcept
        : call(call_),
          place(c.hosts->place()),
          carriers(c.hosts->ranks.fewest()),
          bytes(call_.input.size(0)),
          shares(bytes, carriers) {}
    bool carries() const noexcept { return place < carriers; }
    bool divides_on_host() const noexcept { return call.op == ReduceOp::kAvg && rounds_twice(call.dtype, call.op); }
    std::byte* share() const noexcept { return call.output.data(0) + shares.begin(place); }
    std::size_t share_bytes() const noexcept { return shares.size(place); }
    // At least one, so that every rank has published what the others await of it.
    std::uint64_t rounds(std::size_t chunk) const noexcept {
      return std::max<std::uint64_t>(1, rounds_of(shares.size(0), chunk));
    }

    // A carrier's share of the host's sum, in its output.
    Outcome reduce_shares(CallContext& c) const noexcept {
      if (c.hosts->host == nullptr) {
        copy_unless_same(call.output.data(0), call.input.data(0), bytes);
        if (divides_on_host()) average(call, call.output.data(0), bytes, c.size);
        return kOkOutcome;
      }
      CallContext here = c.on_host();
      return of_group(c, exchange_shares(here));
    }

    Outcome exchange_shares(CallContext& c) const noexcept {
      if (Outcome outcome = c.host->await_all(c.deadline); !outcome.ok()) return outcome;
      constexpr std::size_t kLine = 64;
      const std::size_t part =
          std::max(kLine, chunk_bytes(*c.host, bytes) / static_cast<std::size_t>(carriers) / kLine * kLine);
      const ReduceOp op = divides_on_host() ? ReduceOp::kAvg : part_of(call, call.output.data(0), bytes).op;
      return exchange(
          c, part * static_cast<std::size_t>(carriers), rounds(part), Side::all(), Side::all(),
          [&](std::uint64_t t, std::byte* area) noexcept {
            for (int i = 1; i <= carriers; ++i) {
              const int s = (place + i) % carriers;
              if (s == place) continue;
              const Window w(shares.size(s), part, t);
              c.stage_writer.copy(area + static_cast<std::size_t>(s) * part,
                                  call.input.data(0) + shares.begin(s) + w.begin, w.size);
            }
          },
          [&](std::uint64_t t, const auto& area_of) noexcept {
            if (!carries()) return;
            const Window w(share_bytes(), part, t);
            const std::size_t begin = shares.begin(place) + w.begin;
            SourceList sources;
            for (int r = 0; r < c.size; ++r) {
              sources[static_cast<std::size_t>(r)] =
                  r == place ? call.input.data(0) + begin : area_of(r) + static_cast<std::size_t>(place) * part;
            }
            void* target = call.output.data(0) + begin;
            cpu::reduce(&target, 1, sources.data(), c.size, w.size / size_of(call.dtype), call.dtype, op,
                        divides_on_host() ? c.hosts->ranks.ranks() : 1);
          });
    }

    // Every carrier's share to all ranks of the host.
    Outcome gather_shares(CallContext& c) const {
      if (c.hosts->host == nullptr) return kOkOutcome;
      const std::uint64_t first = c.hosts->host->step_base() + 1;
      // A carrier has watched while it made its exchange.
      for (int s = 0; s < carriers && !carries(); ++s) {
        if (Outcome outcome = await_filled(c, s, first); !outcome.ok()) return outcome;
      }
      CallContext here = c.on_host();
      return of_group(c, exchange_results(here));
    }

    Outcome exchange_results(CallContext& c) const noexcept {
      HostChannel& host = *c.host;
      // The areas are divided anew: nobody may still read what was filled for the reduction.
      if (Outcome outcome = host.await_step_all(StepLane::kDrained, host.step_base(), c.deadline); !outcome.ok()) {
        return outcome;
      }
      const std::size_t chunk = chunk_bytes(host, shares.size(0));
      const Delivery deliver = delivery_of(host, bytes);
      const Outcome outcome = exchange(
          c, chunk, rounds(chunk), Side::lowest(carriers), Side::all(),
          [&](std::uint64_t t, std::byte* area) noexcept {
            const Window w(share_bytes(), chunk, t);
            c.stage_writer.copy(area, share() + w.begin, w.size, c.size - 1);
          },
          [&](std::uint64_t t, const auto& area_of) noexcept {
            for (int i = 1; i <= carriers; ++i) {
              const int s = (place + i) % carriers;
              if (s == place) continue;
              const Window w(shares.size(s), chunk, t);
              deliver(call.output.data(0) + shares.begin(s) + w.begin, area_of(s), w.size);
            }
          });
      if (!outcome.ok()) return outcome;
      // What is next may be a plan, which fills areas without having compared the calls of all ranks of the host.
      return host.await_step_all(StepLane::kDrained, host.step_base(), c.deadline);
    }
  };

  TwoLevelExchange exchange_;
};

}  // namespace

AlgorithmList carrier_algorithms() { return {std::make_shared<CarriersAllReduce>()}; }

}  // namespace tutti
