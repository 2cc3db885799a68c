// Compares operations a round apart.
#include "plan/simulator/repetition.h"

#include <algorithm>
#include <tuple>

namespace tutti::plan {
namespace {

constexpr std::size_t kLongestRound = 64;
constexpr std::int64_t kLeastRounds = 8;

// Alike but for which chunks they move.
bool alike(const Operation& a, const Operation& b) {
  const auto same = [](const std::vector<Operand>& x, const std::vector<Operand>& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const Operand& p, const Operand& q) {
      return std::tie(p.place, p.buffer, p.id, p.size) == std::tie(q.place, q.buffer, q.id, q.size);
    });
  };
  const auto rest = [](const Operation& op) {
    return std::tie(op.kind, op.channel, op.reduce, op.channel_ids, op.semaphore_ids, op.barrier_id, op.barrier_blocks,
                    op.part);
  };
  return rest(a) == rest(b) && same(a.sources, b.sources) && same(a.destinations, b.destinations) && a.body.empty() &&
         b.body.empty();
}

}  // namespace

std::vector<Repetition> repetitions_of(const std::vector<Operation>& operations) {
  std::vector<Repetition> found;
  for (std::size_t at = 0; at < operations.size();) {
    Repetition best;
    for (std::size_t round = 1; round <= kLongestRound; ++round) {
      std::size_t end = at + round;
      while (end < operations.size() && alike(operations[end - round], operations[end])) ++end;
      const auto rounds = static_cast<std::int64_t>((end - at) / round);
      if (rounds >= kLeastRounds &&
          rounds * static_cast<std::int64_t>(round) > best.rounds * static_cast<std::int64_t>(best.round)) {
        best = {at, round, rounds};
      }
    }
    if (best.rounds == 0) {
      ++at;
      continue;
    }
    found.push_back(best);
    at += best.round * static_cast<std::size_t>(best.rounds);
  }
  return found;
}

}  // namespace tutti::plan
