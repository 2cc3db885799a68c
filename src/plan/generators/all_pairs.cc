// Every rank speaks to every other, in packets. All add in the order of ranks, so that all get the same bits; in that
// the ranks are not alike, and all are written out.
#include <numeric>
#include <utility>
#include <vector>

#include "plan/generators/algorithms.h"
#include "plan/generators/rank_writer.h"

namespace tutti::plan {
namespace {

Plan in_packets(const char* name, std::int32_t ranks, std::int32_t chunks, std::int32_t scratch) {
  Plan plan;
  plan.name = name;
  plan.collective = PlanCollective::kAllReduce;
  plan.collective_name = "allreduce";
  plan.protocol = Protocol::kLL;
  plan.double_scratch = true;  // a writer that is one call ahead does not overwrite what is still being read
  plan.reduce = ReduceKind::kSum;
  plan.ranks.resize(static_cast<std::size_t>(ranks));
  for (Rank& rank : plan.ranks) rank.chunks = {chunks, chunks, scratch};
  return plan;
}

std::vector<std::int32_t> others(std::int32_t ranks, std::int32_t self) {
  std::vector<std::int32_t> out;
  for (std::int32_t peer = 0; peer < ranks; ++peer) {
    if (peer != self) out.push_back(peer);
  }
  return out;
}

}  // namespace

Plan one_shot(std::int32_t ranks, std::int32_t pieces) {
  Plan plan = in_packets("one-shot", ranks, pieces, ranks * pieces);
  for (std::int32_t r = 0; r < ranks; ++r) {
    RankWriter rank(plan.ranks[r]);
    const std::vector<std::int32_t> peers = others(ranks, r);
    rank.begin_block();
    std::vector<RankWriter::Remote> slots;
    for (const std::int32_t peer : peers) slots.push_back({peer, kS, r * pieces});
    rank.move(OpKind::kPutPackets, pieces, std::vector<Operand>(peers.size(), chunks_at(kI, 0)), {}, slots);
    rank.move(OpKind::kCopyPackets, pieces, {chunks_at(kI, 0)}, {chunks_at(kS, r * pieces)}, {});
    rank.move(OpKind::kUnpackPackets, pieces, {chunks_at(kS, 0)}, {chunks_at(kO, 0)}, {});
    rank.nop();
    std::vector<Operand> terms{chunks_at(kO, 0)};
    for (std::int32_t from = 1; from < ranks; ++from) terms.push_back(chunks_at(kS, from * pieces));
    rank.move(OpKind::kReducePackets, pieces, terms, {chunks_at(kO, 0)}, {});
  }
  return plan;
}

Plan two_shot(std::int32_t ranks) {
  Plan plan = in_packets("two-shot", ranks, ranks, 2 * ranks);
  for (std::int32_t r = 0; r < ranks; ++r) {
    RankWriter rank(plan.ranks[r]);
    const std::vector<std::int32_t> peers = others(ranks, r);
    rank.begin_block();
    std::vector<Operand> blocks;
    std::vector<RankWriter::Remote> given;
    std::vector<RankWriter::Remote> sums;
    std::vector<Operand> terms{chunks_at(kI, r)};
    for (const std::int32_t peer : peers) {
      blocks.push_back(chunks_at(kI, peer));
      given.push_back({peer, kS, r});
      sums.push_back({peer, kS, ranks + r});
      terms.push_back(chunks_at(kS, peer));
    }
    rank.move(OpKind::kPutPackets, 1, blocks, {}, given);
    rank.move(OpKind::kReducePackets, 1, terms, {chunks_at(kO, r)}, {});
    rank.nop();
    rank.move(OpKind::kPutPackets, 1, std::vector<Operand>(peers.size(), chunks_at(kO, r)), {}, sums);
    for (const std::int32_t peer : peers) {
      rank.move(OpKind::kUnpackPackets, 1, {chunks_at(kS, ranks + peer)}, {chunks_at(kO, peer)}, {});
    }
  }
  return plan;
}

}  // namespace tutti::plan
