// Fractions of what loops move: from one more iteration to the next.
#include "plan/verifier/lengths.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "plan/links.h"
#include "plan/operations.h"
#include "plan/sizes.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::int64_t kMaxUnits = 4096;
constexpr std::int64_t kAllIterations = 24;  // up to so many each, past them those where something begins anew
constexpr std::size_t kMostLengths = 256;
constexpr std::int64_t kMostTicks = std::int64_t{1} << 31;  // of a chunk; so that products stay in 64 bits

constexpr const char* kTooManyLengths = "not proven: its loops differ in too many ways";

// A length in ticks.
struct Ratio {
  std::int64_t over = 0;
  std::int64_t under = 1;

  bool operator<(const Ratio& other) const { return over * other.under < other.over * under; }
};

Ratio reduced(std::int64_t over, std::int64_t under) {
  const std::int64_t common = std::gcd(over, under);
  return {over / common, under / common};
}

Ratio between(const Ratio& low, const Ratio& high) {
  return reduced(low.over * high.under + high.over * low.under, 2 * low.under * high.under);
}

template <typename Visit>
void for_each_operation(const Plan& plan, const Visit& visit) {
  for (const Rank& rank : plan.ranks) {
    for (const ThreadBlock& block : rank.blocks) {
      for (const Operation& op : block.operations) visit(op);
    }
  }
}

// How far one thread block can run ahead of another in a loop: by what a counter begins with, and what is added to it
// outside of loops.
class Credits {
 public:
  explicit Credits(const Plan& plan) {
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      for (const ThreadBlock& block : plan.ranks[r].blocks) {
        for (const Operation& op : block.operations) {
          note(plan, r, block, op, false);
          for (const Operation& inner : op.body) note(plan, r, block, inner, true);
        }
      }
    }
  }

  std::int64_t largest() const {
    std::int64_t most = 0;
    for (const auto& [counter, credit] : given_) {
      if (credit.in_loop) most = std::max(most, credit.given);
    }
    return most;
  }

 private:
  struct Credit {
    std::int64_t given = 0;
    bool in_loop = false;
  };
  using Counter = std::tuple<ChannelKind, std::size_t, std::int32_t>;

  void note(const Plan& plan, std::size_t rank, const ThreadBlock& block, const Operation& op, bool in_loop) {
    const OperationRules& rules = rules_of(op.kind);
    const bool semaphore = rules.sync == SyncKind::kSemaphoreAcquire || rules.sync == SyncKind::kSemaphoreRelease;
    for (const std::int32_t id : op.semaphore_ids) {
      const auto [found, added] = given_.try_emplace(Counter{ChannelKind::kNone, rank, id});
      if (added) found->second.given = plan.ranks[rank].semaphores[id];
      found->second.in_loop = found->second.in_loop || in_loop;
      if (semaphore && !in_loop && rules.sync == SyncKind::kSemaphoreRelease) ++found->second.given;
    }
    const bool raises = rules.signals || rules.sync == SyncKind::kSignal || rules.sync == SyncKind::kRelaxedSignal;
    if (!raises) return;
    for (const std::int32_t id : op.channel_ids) {
      Credit& credit = given_[{op.channel, rank, block.channels_of(op.channel)[id]}];
      credit.in_loop = credit.in_loop || in_loop;
      if (!in_loop) ++credit.given;
    }
  }

  std::map<Counter, Credit> given_;
};

// How often a loop raises or takes one counter in an iteration, at most, if loops differ in that; else 1. What one of
// them takes then comes from ever earlier iterations of another one, or from another place of its iteration.
std::int64_t uneven_rate(const Plan& plan) {
  const Links links(plan);
  using Counter = std::tuple<ChannelKind, std::size_t, std::int32_t>;  // a channel's: of the rank that waits
  std::map<Counter, std::set<std::int64_t>> rates;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const ThreadBlock& block : plan.ranks[r].blocks) {
      for (const Operation& loop : block.operations) {
        std::map<Counter, std::int64_t> raised, taken;
        for (const Operation& op : loop.body) {
          const OperationRules& rules = rules_of(op.kind);
          const bool raises =
              rules.signals || rules.sync == SyncKind::kSignal || rules.sync == SyncKind::kRelaxedSignal;
          const bool takes = rules.sync == SyncKind::kWait || rules.sync == SyncKind::kRelaxedWait;
          for (const std::int32_t id : op.semaphore_ids) {
            ++(rules.sync == SyncKind::kSemaphoreRelease ? raised : taken)[{ChannelKind::kNone, r, id}];
          }
          for (std::size_t i = 0; (raises || takes) && i < op.channel_ids.size(); ++i) {
            const std::int32_t channel = block.channels_of(op.channel)[op.channel_ids[i]];
            if (takes) ++taken[{op.channel, r, channel}];
            if (!raises) continue;
            const auto peer = static_cast<std::size_t>(plan.ranks[r].channels_of(op.channel)[channel]);
            ++raised[{op.channel, peer, links.partner(op.channel, static_cast<std::int32_t>(r), channel)}];
          }
        }
        for (const auto& [counter, count] : raised) rates[counter].insert(count);
        for (const auto& [counter, count] : taken) rates[counter].insert(count);
      }
    }
  }
  std::int64_t most = 1;
  for (const auto& [counter, of_loops] : rates) {
    if (of_loops.size() > 1) most = std::max(most, *of_loops.rbegin());
  }
  return most;
}

// How many iterations fit into a chunk of reused scratch, as far as that can matter: a ring longer than the credits
// lets no more happen than one of credits + 2. 0 if no message that the plan is for needs a ring.
std::int64_t ring_iterations(const Plan& plan, std::int64_t credit) {
  const std::int64_t unit = plan.reuse_resources ? ring_unit(plan) : 0;
  if (unit == 0 || plan.max_message_bytes <= static_cast<std::uint64_t>(bytes_without_ring(plan))) return 0;
  std::int64_t most = 1;
  for (const Rank& rank : plan.ranks) most = std::max<std::int64_t>(most, rank.chunks_of(BufferKind::kScratch));
  const std::int64_t fits = kReusedScratchBytes / (plan.double_scratch ? 2 : 1) / most / unit;
  return std::clamp<std::int64_t>(fits, 1, credit + 2);
}

// Every part of a group must begin on a unit.
std::int64_t parts_of(const Plan& plan) {
  std::int64_t parts = 1;
  for_each_operation(plan, [&parts](const Operation& op) {
    if (!op.part) return;
    for (const Operand& source : op.sources) {
      parts = std::lcm(parts, op.part->size / std::gcd<std::int64_t>(op.part->size, source.size));
      if (parts > kMaxUnits)
        throw_error(ErrorKind::kUnsupported, "not proven: its thread block groups cut a chunk into more than " +
                                                 std::to_string(kMaxUnits) + " parts");
    }
  });
  return parts;
}

std::vector<std::int64_t> iterations_up_to(std::int64_t most, std::int64_t ring) {
  std::set<std::int64_t> some;
  const auto add = [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = std::max<std::int64_t>(first, 1); i <= std::min(last, most); ++i) some.insert(i);
  };
  add(1, kAllIterations);
  add(most - 2, most);
  if (ring > 0) {
    add(ring - 1, ring + 1);
    add(2 * ring - 1, 2 * ring + 1);
  }
  return {some.begin(), some.end()};
}

// The longest chunk of a message that the plan is for, in ticks; 0 if it is no matter.
std::int64_t longest_chunk(const Plan& plan, std::int64_t tick_bytes) {
  std::int64_t fewest = 0;
  for (const std::int32_t chunks : shape_of(plan).block_chunks) {
    if (chunks > 0) fewest = fewest == 0 ? chunks : std::min<std::int64_t>(fewest, chunks);
  }
  if (fewest == 0) return 0;
  const std::uint64_t ticks =
      plan.max_message_bytes / static_cast<std::uint64_t>(fewest) / static_cast<std::uint64_t>(tick_bytes);
  return ticks >= kMaxUnits ? 0 : static_cast<std::int64_t>(ticks) + 1;
}

}  // namespace

std::vector<Cut> deciding_cuts(const Plan& plan) {
  const std::int64_t parts = parts_of(plan);
  std::map<std::int64_t, std::set<std::int64_t>> loops;  // by unit: how many chunks they and their operations move
  std::int64_t tick = 0;
  for_each_operation(plan, [&](const Operation& op) {
    if (op.kind != OpKind::kPipeline) return;
    tick = std::gcd(tick, op.iteration.unit_bytes);
    std::set<std::int64_t>& chunks = loops[op.iteration.unit_bytes];
    chunks.insert(op.iteration.chunks);
    for (const Operation& inner : op.body) {
      for (const Operand& source : inner.sources) chunks.insert(source.size);
    }
  });
  if (loops.empty()) return {{.units = parts}};
  const std::int64_t credit = Credits(plan).largest();
  const std::int64_t ahead = (credit + 2) * uneven_rate(plan);
  const std::int64_t ring = ring_iterations(plan, credit);
  std::set<Ratio> turns;  // where some loop begins one more iteration, or cuts a chunk elsewhere
  for (const auto& [unit, counts] : loops) {
    const bool wraps = ring > 0 && unit == ring_unit(plan);
    for (const std::int64_t iteration : iterations_up_to(ahead + (wraps ? 2 * ring : 0), wraps ? ring : 0)) {
      if (unit / tick > kMostTicks / iteration) throw_error(ErrorKind::kUnsupported, kTooManyLengths);
      for (const std::int64_t chunks : counts) {
        turns.insert(reduced(iteration * (unit / tick), chunks));
        if (turns.size() > kMostLengths) throw_error(ErrorKind::kUnsupported, kTooManyLengths);
      }
    }
  }
  const bool alike = loops.size() == 1 && loops.begin()->second.size() == 1;
  const std::int64_t longest = ring > 0 ? 0 : longest_chunk(plan, tick);
  std::vector<Ratio> lengths{reduced(turns.begin()->over, 2 * turns.begin()->under)};
  for (const Ratio& turn : turns) {
    if (longest > 0 && !(lengths.back() < Ratio{longest, 1})) break;
    if (lengths.size() > 1 && (!alike || lengths.size() < 3)) lengths.push_back(between(lengths.back(), turn));
    lengths.push_back(turn);
  }
  std::vector<Cut> cuts;
  for (const Ratio& length : lengths) {
    const std::int64_t finer = parts / std::gcd(length.over, parts);
    if (length.over > kMaxUnits / finer)
      throw_error(ErrorKind::kUnsupported,
                  "not proven: its loops cut a chunk into more than " + std::to_string(kMaxUnits) + " parts");
    // So that a loop's ticks in units stay in 64 bits.
    if (length.under > kMostTicks / finer) throw_error(ErrorKind::kUnsupported, kTooManyLengths);
    Cut cut{.units = length.over * finer, .tick_bytes = tick, .tick_units = length.under * finer};
    if (ring > 0) cut.ring_units = ring * (ring_unit(plan) / tick) * cut.tick_units;
    if (cut.ring_units >= cut.units) cut.ring_units = 0;
    cuts.push_back(cut);
  }
  return cuts;
}

}  // namespace tutti::plan
