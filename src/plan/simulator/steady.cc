// Leaves out rounds, and finds what a round costs.
#include "plan/simulator/steady.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "plan/operations.h"
#include "plan/simulator/engine.h"
#include "plan/simulator/repetition.h"
#include "plan/sizes.h"

namespace tutti::plan {
namespace {

constexpr std::int64_t kWhole = 1 << 20;      // operations that are simulated one by one: some seconds
constexpr std::int64_t kFirstRounds = 12;     // kept at first
constexpr std::int64_t kMostTried = 1 << 21;  // operations, in search of a steady state

// Packets are looked for where they were written, so rounds with them cannot be left out.
bool has_packets(const Rank& rank) {
  return std::any_of(rank.blocks.begin(), rank.blocks.end(), [](const ThreadBlock& block) {
    return std::any_of(block.operations.begin(), block.operations.end(),
                       [](const Operation& op) { return uses_packets(op); });
  });
}

class Steady {
 public:
  Steady(const Template& folded, const Topology& topology, std::int64_t block_bytes, std::optional<double> budget_s)
      : folded_(folded), topology_(topology), routes_(topology), budget_s_(budget_s) {
    repetitions_ = repetitions_of(folded.plan.ranks[0].blocks[0].operations);
    const Plan shape = shortened(Rounds(repetitions_.size(), 1));
    chunk_bytes_ = Sizes(shape, block_bytes).chunk_bytes();
    block_bytes_ = chunk_bytes_ * shape_of(shape).block_chunks[0];
  }

  bool repeats() const { return !repetitions_.empty(); }

  Simulation run() {
    for (std::int64_t most = kFirstRounds;; most *= 4) {
      Rounds kept = at_most(most);
      Simulation few = simulate_rounds(kept);
      Periods periods = few.complete ? periods_of(few, kept) : Periods{};
      const bool last = !few.complete || operations_in(at_most(4 * most)) > kMostTried;
      if (!few.complete || (periods.empty() && last)) return estimated(std::move(few), kept);
      if (periods.empty()) continue;
      // What is left out must be whole periods.
      const Rounds aligned = in_step(kept, periods);
      if (aligned != kept) {
        few = simulate_rounds(aligned);
        if (!few.complete) return estimated(std::move(few), aligned);
        periods = periods_of(few, aligned);
        if (periods.empty() || in_step(aligned, periods) != aligned) continue;
      }
      return extrapolated(std::move(few), aligned, periods);
    }
  }

 private:
  using Rounds = std::vector<std::int64_t>;  // of each repetition
  using Times = std::vector<std::vector<Picoseconds>>;
  // After so many rounds all is as before, but later.
  struct Period {
    std::int64_t rounds = 1;
    Picoseconds shift = 0;
  };
  using Periods = std::vector<Period>;

  Rounds at_most(std::int64_t rounds) const {
    Rounds kept;
    for (const Repetition& r : repetitions_) kept.push_back(std::min(rounds, r.rounds));
    return kept;
  }

  Rounds in_step(Rounds kept, const Periods& periods) const {
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] += (repetitions_[i].rounds - kept[i]) % periods[i].rounds;
    return kept;
  }

  std::size_t operations_of_rank(const Rounds& kept) const {
    std::size_t count = folded_.plan.ranks[0].blocks[0].operations.size();
    for (std::size_t i = 0; i < kept.size(); ++i) {
      count -= static_cast<std::size_t>(repetitions_[i].rounds - kept[i]) * repetitions_[i].round;
    }
    return count;
  }

  std::int64_t operations_in(const Rounds& kept) const {
    return static_cast<std::int64_t>(operations_of_rank(kept)) * folded_.symmetry.ranks();
  }

  Plan shortened(const Rounds& kept) const {
    Template few = folded_;
    auto& operations = few.plan.ranks[0].blocks[0].operations;
    for (std::size_t i = repetitions_.size(); i-- > 0;) {
      const Repetition& r = repetitions_[i];
      const auto first = operations.begin() + static_cast<std::ptrdiff_t>(r.begin);
      const auto round = static_cast<std::ptrdiff_t>(r.round);
      operations.erase(first + round * kept[i], first + round * r.rounds);
    }
    return written_out(few);
  }

  Simulation simulate_rounds(const Rounds& kept) {
    std::optional<double> left;
    if (budget_s_) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
      left = std::max(0.0, *budget_s_ - spent.count());
    }
    const Plan plan = shortened(kept);
    return Engine(plan, topology_, routes_, block_bytes_).run(left);
  }

  // The operation behind the kept rounds of a repetition.
  std::size_t end_of(const Rounds& kept, std::size_t nth) const {
    std::size_t end = repetitions_[nth].begin + repetitions_[nth].round * static_cast<std::size_t>(kept[nth]);
    for (std::size_t i = 0; i < nth; ++i) {
      end -= static_cast<std::size_t>(repetitions_[i].rounds - kept[i]) * repetitions_[i].round;
    }
    return end;
  }

  // Steps name the operations of the template.
  void restore(std::vector<TimelineStep>& steps, const Rounds& kept) const {
    for (TimelineStep& step : steps) {
      const auto op = static_cast<std::size_t>(step.op);
      for (std::size_t i = 0; i < kept.size() && op >= end_of(kept, i); ++i) {
        step.op += static_cast<std::int32_t>(repetitions_[i].rounds - kept[i]) *
                   static_cast<std::int32_t>(repetitions_[i].round);
      }
    }
  }

  // For each repetition; empty if one of them is not in a steady state.
  Periods periods_of(const Simulation& few, const Rounds& kept) const {
    // [operation][rank]: when it was over, for all to see. Operations that take no time leave no step.
    Times over(operations_of_rank(kept));
    for (const TimelineStep& step : few.steps) {
      auto& row = over[static_cast<std::size_t>(step.op)];
      if (row.empty()) row.resize(static_cast<std::size_t>(folded_.symmetry.ranks()));
      row[step.rank] = std::max({row[step.rank], step.end, step.seen});
    }
    Periods periods;
    for (std::size_t i = 0; i < repetitions_.size(); ++i) {
      std::optional<Period> found;
      if (kept[i] == repetitions_[i].rounds) found = Period{};
      for (std::int64_t q = 1; !found && 3 * q <= kept[i]; ++q) {
        const auto shift = shift_by(over, end_of(kept, i), repetitions_[i].round * static_cast<std::size_t>(q));
        if (shift) found = Period{q, *shift};
      }
      if (!found) return {};
      periods.push_back(*found);
    }
    return periods;
  }

  // By how much all operations of the last two spans before `end` are later than those a span before them; empty if not
  // all by the same.
  static std::optional<Picoseconds> shift_by(const Times& over, std::size_t end, std::size_t span) {
    std::optional<Picoseconds> shift;
    for (std::size_t op = end - 2 * span; op < end; ++op) {
      if (over[op].size() != over[op - span].size()) return std::nullopt;
      for (std::size_t rank = 0; rank < over[op].size(); ++rank) {
        const Picoseconds later = over[op][rank] - over[op - span][rank];
        if (shift.value_or(later) != later) return std::nullopt;
        shift = later;
      }
    }
    return shift;
  }

  // The bytes over each link, all rounds together: every round carries the same.
  std::vector<double> bytes_over_links() {
    const auto bytes = [&](const Rounds& kept) {
      std::vector<double> out(topology_.links.size());
      const Plan plan = shortened(kept);
      for (const LinkUse& use : Engine(plan, topology_, routes_, block_bytes_).run(std::nullopt).links) {
        out[use.link] = use.bytes;
      }
      return out;
    };
    const std::vector<double> once = bytes(Rounds(repetitions_.size(), 1));
    std::vector<double> total = once;
    for (std::size_t i = 0; i < repetitions_.size(); ++i) {
      Rounds kept(repetitions_.size(), 1);
      kept[i] = 2;
      const std::vector<double> more = bytes(kept);
      for (std::size_t l = 0; l < total.size(); ++l) {
        total[l] += (more[l] - once[l]) * static_cast<double>(repetitions_[i].rounds - 1);
      }
    }
    return total;
  }

  std::string rounds_text(const Rounds& kept) const {
    std::string text = "simulated ";
    for (std::size_t i = 0; i < kept.size(); ++i) {
      text += (i == 0 ? "" : " and ") + std::to_string(kept[i]) + " of " + std::to_string(repetitions_[i].rounds);
    }
    return text + " rounds of " + std::to_string(folded_.symmetry.ranks()) + " ranks";
  }

  Simulation extrapolated(Simulation out, const Rounds& kept, const Periods& periods) {
    double time = out.time_us * kPicosecondsPerUs;
    std::int64_t period = 1;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const std::int64_t left_out = repetitions_[i].rounds - kept[i];
      time += static_cast<double>(left_out / periods[i].rounds) * static_cast<double>(periods[i].shift);
      period = std::lcm(period, periods[i].rounds);
    }
    out.time_us = time / kPicosecondsPerUs;
    const std::vector<double> bytes = bytes_over_links();
    restore(out.steps, kept);
    out.links.clear();
    for (std::size_t l = 0; l < bytes.size(); ++l) {
      if (bytes[l] == 0) continue;
      const double most = topology_.links[l].bandwidth * time;
      out.links.push_back({static_cast<std::int32_t>(l), bytes[l], most > 0 ? std::min(1.0, bytes[l] / most) : 0});
    }
    std::stable_sort(out.links.begin(), out.links.end(),
                     [](const LinkUse& a, const LinkUse& b) { return a.share > b.share; });
    out.basis = rounds_text(kept) + "; from then on " +
                (period == 1 ? "every round delays" : "every " + std::to_string(period) + " rounds delay") +
                " all ranks by the same time, so the others follow; every chunk is taken as full, " +
                std::to_string(chunk_bytes_) + " bytes";
    return out;
  }

  // By the part of the operations.
  Simulation estimated(Simulation out, const Rounds& kept) const {
    const double part = static_cast<double>(operations_of_rank(kept)) /
                        static_cast<double>(folded_.plan.ranks[0].blocks[0].operations.size());
    out.basis = rounds_text(kept) + (out.complete ? ", in which no steady state showed" : " and went over budget") +
                "; the time is what they took over their part of the operations";
    restore(out.steps, kept);
    out.complete = false;
    out.done *= part;
    out.time_us /= part;
    return out;
  }

  const Template& folded_;
  const Topology& topology_;
  Routes routes_;
  std::optional<double> budget_s_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<Repetition> repetitions_;
  std::int64_t chunk_bytes_ = 0;
  std::int64_t block_bytes_ = 0;
};

}  // namespace

Simulation simulate(const Template& folded, const Topology& topology, std::int64_t block_bytes,
                    std::optional<double> budget_s, std::int64_t whole) {
  check_ranks(topology, static_cast<std::size_t>(folded.symmetry.ranks()));
  const Rank& rank = folded.plan.ranks.at(0);
  if (operations_of(folded) > whole && rank.blocks.size() == 1 && !has_packets(rank)) {
    Steady steady(folded, topology, block_bytes, budget_s);
    if (steady.repeats()) {
      Simulation out = steady.run();
      Routes routes(topology);
      Plan head = folded.plan;
      head.ranks.resize(static_cast<std::size_t>(folded.symmetry.ranks()));
      finish(out, head, topology, routes, block_bytes);
      return out;
    }
  }
  return simulate(written_out(folded), topology, block_bytes, budget_s);
}

Simulation simulate(const Template& folded, const Topology& topology, std::int64_t block_bytes,
                    std::optional<double> budget_s) {
  return simulate(folded, topology, block_bytes, budget_s, kWhole);
}

}  // namespace tutti::plan
