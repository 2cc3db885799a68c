// Two binary trees at once. The ranks are not alike, so all are written out.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/generators/algorithms.h"
#include "plan/generators/rank_writer.h"

namespace tutti::plan {
namespace {

// In order: odd places are leaves, a place whose lowest bit is higher is higher up, 0 is the root.
std::int32_t parent_place(std::int32_t place, std::int32_t ranks) {
  const std::int32_t bit = place & -place;
  const std::int32_t above = (place ^ bit) | (bit << 1);
  return above < ranks ? above : place ^ bit;
}

struct Tree {
  std::vector<std::int32_t> parent;                 // by rank; −1 of the root
  std::vector<std::vector<std::int32_t>> children;  // by rank
  std::vector<std::int32_t> depth;
  std::int32_t height = 0;

  // `rank_at` says who is at a place.
  Tree(std::int32_t ranks, const std::function<std::int32_t(std::int32_t)>& rank_at) {
    parent.assign(static_cast<std::size_t>(ranks), -1);
    children.resize(static_cast<std::size_t>(ranks));
    depth.resize(static_cast<std::size_t>(ranks));
    for (std::int32_t place = 1; place < ranks; ++place) {
      const std::int32_t rank = rank_at(place);
      parent[rank] = rank_at(parent_place(place, ranks));
      children[parent[rank]].push_back(rank);
      for (std::int32_t at = place; at != 0; at = parent_place(at, ranks)) ++depth[rank];
      height = std::max(height, depth[rank]);
    }
  }
};

// One rank's passes of the pieces, in the order of their times: every piece follows the one before it by a step.
struct Pass {
  std::int32_t time;
  bool down;
  std::int32_t piece;

  auto operator<=>(const Pass&) const = default;
};

void write_tree(RankWriter& out, const Tree& tree, std::int32_t rank, std::int32_t first, std::int32_t pieces) {
  const std::int32_t parent = tree.parent[rank];
  const auto& children = tree.children[rank];
  std::vector<std::int32_t> peers = children;
  if (parent >= 0) peers.push_back(parent);
  out.begin_block();
  out.enter(peers);
  std::vector<Pass> passes;
  for (std::int32_t piece = 0; piece < pieces; ++piece) {
    passes.push_back({piece + tree.height - tree.depth[rank], false, piece});
    passes.push_back({piece + tree.height + tree.depth[rank], true, piece});
  }
  std::sort(passes.begin(), passes.end());
  const auto slot_at = [&](std::int32_t owner, std::int32_t child, std::int32_t piece) {
    const auto& all = tree.children[owner];
    const auto nth = std::find(all.begin(), all.end(), child) - all.begin();
    return (first > 0 ? pieces * 2 : 0) + static_cast<std::int32_t>(nth) * pieces + piece;
  };
  for (const Pass& pass : passes) {
    const std::int32_t chunk = first + pass.piece;
    if (pass.down) {
      if (parent >= 0) out.wait({parent});
      if (children.empty()) continue;
      std::vector<RankWriter::Remote> copies;
      for (const std::int32_t child : children) copies.push_back({child, kO, chunk});
      out.move(OpKind::kPut, 1, std::vector<Operand>(children.size(), chunks_at(kO, chunk)), {}, copies);
      out.nop();
      out.signal(children);
      continue;
    }
    std::vector<Operand> terms{chunks_at(kI, chunk)};
    for (const std::int32_t child : children) terms.push_back(chunks_at(kS, slot_at(rank, child, pass.piece)));
    out.wait(children);
    std::vector<RankWriter::Remote> up;
    if (parent >= 0) up.push_back({parent, kS, slot_at(parent, rank, pass.piece)});
    if (children.empty()) {
      out.move(OpKind::kPut, 1, terms, {}, up);
    } else {
      out.move(up.empty() ? OpKind::kReduce : OpKind::kReduceSend, 1, terms, {chunks_at(kO, chunk)}, up);
    }
    out.nop();
    if (parent >= 0) out.signal({parent});
  }
}

}  // namespace

Plan double_tree(std::int32_t ranks, std::int32_t pieces) {
  Plan plan;
  plan.name = "double tree";
  plan.collective = PlanCollective::kAllReduce;
  plan.collective_name = "allreduce";
  plan.reduce = ReduceKind::kSum;
  // The second tree is the mirror of the first; where that would not swap leaves, it is shifted by one.
  const Tree one(ranks, [](std::int32_t place) { return place; });
  const Tree two(ranks,
                 [ranks](std::int32_t place) { return ranks % 2 == 0 ? ranks - 1 - place : (place + 1) % ranks; });
  plan.ranks.resize(static_cast<std::size_t>(ranks));
  for (std::int32_t r = 0; r < ranks; ++r) {
    // At most two children in each tree.
    plan.ranks[r].chunks = {2 * pieces, 2 * pieces, 4 * pieces};
    RankWriter rank(plan.ranks[r]);
    write_tree(rank, one, r, 0, pieces);
    write_tree(rank, two, r, pieces, pieces);
  }
  return plan;
}

}  // namespace tutti::plan
