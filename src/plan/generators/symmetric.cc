// Families whose ranks are alike: rank 0 of each.
#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/generators/algorithms.h"
#include "plan/generators/rank_writer.h"

namespace tutti::plan {
namespace {

Plan all_reduce(const char* name, std::int32_t chunks, std::int32_t scratch) {
  Plan plan;
  plan.name = name;
  plan.collective = PlanCollective::kAllReduce;
  plan.collective_name = "allreduce";
  plan.reduce = ReduceKind::kSum;
  plan.ranks.resize(1);
  plan.ranks[0].chunks = {chunks, chunks, scratch};
  return plan;
}

std::vector<std::int32_t> cube(std::int32_t ranks) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(ranks))), 2);
}

// Of chunk 0 among `peers`, which have the same part of the data, one after the other; slots from `slot` on. The last
// sum stays in output. `from` is where the first one is.
void double_recursively(RankWriter& rank, const std::vector<std::int32_t>& peers, BufferKind from, std::int32_t slot) {
  for (std::size_t k = 0; k < peers.size(); ++k) {
    const auto at = slot + static_cast<std::int32_t>(k);
    if (k == 0) {
      rank.move(OpKind::kPut, 1, {chunks_at(from, 0)}, {}, {{peers[0], kS, at}});
    } else {
      rank.move(OpKind::kReduceSend, 1, {chunks_at(k == 1 ? from : kO, 0), chunks_at(kS, at - 1)}, {chunks_at(kO, 0)},
                {{peers[k], kS, at}});
    }
    rank.nop();
    rank.signal({peers[k]});
    rank.wait({peers[k]});
  }
  if (peers.empty()) return;
  const auto last = slot + static_cast<std::int32_t>(peers.size()) - 1;
  rank.move(OpKind::kReduce, 1, {chunks_at(peers.size() == 1 ? from : kO, 0), chunks_at(kS, last)}, {chunks_at(kO, 0)},
            {});
  rank.nop();
}

}  // namespace

Template ring(std::int32_t ranks) {
  Plan plan = all_reduce("ring", ranks, ranks - 1);
  RankWriter rank(plan.ranks[0]);
  const std::int32_t next = 1;
  const std::int32_t before = ranks - 1;
  rank.begin_block();
  rank.enter({before}, {next});
  rank.move(OpKind::kPut, 1, {chunks_at(kI, 0)}, {}, {{next, kS, 0}});
  rank.nop();
  rank.signal({next});
  for (std::int32_t step = 1; step < ranks; ++step) {
    const std::int32_t block = ranks - step;
    const bool whole = step == ranks - 1;  // then it sets out on its second round
    rank.wait({before});
    rank.move(OpKind::kReduceSend, 1, {chunks_at(kI, block), chunks_at(kS, step - 1)}, {chunks_at(kO, block)},
              {{next, whole ? kO : kS, whole ? block : step}});
    rank.nop();
    rank.signal({next});
  }
  for (std::int32_t step = 1; step < ranks - 1; ++step) {
    const std::int32_t block = (ranks + 1 - step) % ranks;
    rank.wait({before});
    rank.move(OpKind::kPut, 1, {chunks_at(kO, block)}, {}, {{next, kO, block}});
    rank.nop();
    rank.signal({next});
  }
  rank.wait({before});
  return {std::move(plan), Symmetry({ranks}, {ranks, ranks})};
}

Template recursive_doubling(std::int32_t ranks) {
  const std::vector<std::int32_t> dims = cube(ranks);
  Plan plan = all_reduce("recursive doubling", 1, static_cast<std::int32_t>(dims.size()));
  RankWriter rank(plan.ranks[0]);
  std::vector<std::int32_t> peers;
  for (std::int32_t bit = 1; bit < ranks; bit *= 2) peers.push_back(bit);
  rank.begin_block();
  rank.enter(peers);
  double_recursively(rank, peers, kI, 0);
  return {std::move(plan), Symmetry(dims)};
}

Template halving_doubling(std::int32_t ranks) {
  Plan plan = all_reduce("halving and doubling", ranks, ranks - 1);
  RankWriter rank(plan.ranks[0]);
  std::vector<std::int32_t> peers;
  for (std::int32_t bit = ranks / 2; bit > 0; bit /= 2) peers.push_back(bit);
  rank.begin_block();
  rank.enter(peers);
  std::int32_t slot = 0;
  BufferKind from = kI;
  for (const std::int32_t bit : peers) {
    // The far half is given away, the near one kept and added to.
    rank.move(OpKind::kPut, bit, {chunks_at(from, bit)}, {}, {{bit, kS, slot}});
    rank.nop();
    rank.signal({bit});
    rank.wait({bit});
    rank.move(OpKind::kReduce, bit, {chunks_at(from, 0), chunks_at(kS, slot)}, {chunks_at(kO, 0)}, {});
    rank.nop();
    from = kO;
    slot += bit;
  }
  for (std::int32_t bit = 1; bit < ranks; bit *= 2) {
    rank.move(OpKind::kPut, bit, {chunks_at(kO, 0)}, {}, {{bit, kO, 0}});
    rank.nop();
    rank.signal({bit});
    rank.wait({bit});
  }
  return {std::move(plan), Symmetry(cube(ranks), {ranks, ranks})};
}

Template two_level(std::int32_t ranks, std::int32_t ranks_per_host) {
  const std::int32_t m = ranks_per_host;
  std::vector<std::int32_t> dims = cube(ranks / m);
  const auto exchanges = static_cast<std::int32_t>(dims.size());
  dims.insert(dims.begin(), m);
  Plan plan = all_reduce("two-level", m, m - 1 + exchanges);
  RankWriter rank(plan.ranks[0]);
  std::vector<std::int32_t> near(static_cast<std::size_t>(m) - 1);
  std::iota(near.begin(), near.end(), 1);
  std::vector<std::int32_t> far;
  for (std::int32_t host = 1; host < ranks / m; host *= 2) far.push_back(host * m);
  std::vector<std::int32_t> all = near;
  all.insert(all.end(), far.begin(), far.end());
  rank.begin_block();
  rank.enter(all);
  if (m > 1) {
    // A slot for each of the host's other ranks, numbered by how far behind it is.
    std::vector<Operand> parts;
    std::vector<RankWriter::Remote> slots;
    std::vector<Operand> terms{chunks_at(kI, 0)};
    for (const std::int32_t peer : near) {
      parts.push_back(chunks_at(kI, peer));
      slots.push_back({peer, kS, m - 1 - peer});
      terms.push_back(chunks_at(kS, peer - 1));
    }
    rank.move(OpKind::kPut, 1, parts, {}, slots);
    rank.nop();
    rank.signal(near);
    rank.wait(near);
    rank.move(OpKind::kReduce, 1, terms, {chunks_at(kO, 0)}, {});
    rank.nop();
  }
  double_recursively(rank, far, m > 1 ? kO : kI, m - 1);
  if (m > 1) {
    std::vector<RankWriter::Remote> copies;
    for (const std::int32_t peer : near) copies.push_back({peer, kO, 0});
    rank.move(OpKind::kPut, 1, std::vector<Operand>(near.size(), chunks_at(kO, 0)), {}, copies);
    rank.nop();
    rank.signal(near);
    rank.wait(near);
  }
  return {std::move(plan), Symmetry(dims, {m, m})};
}

}  // namespace tutti::plan
