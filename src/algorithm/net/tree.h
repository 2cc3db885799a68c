// Trees of ranks, and passing segments down or up along them.
#pragma once

#include <cstddef>
#include <vector>

#include "algorithm/net/net_algorithm.h"

namespace tutti {

// Where a rank stands in a tree.
struct TreePlace {
  int parent = -1;            // -1 at the root
  std::vector<int> children;  // in the order in which their parts are reduced
  bool own_first = true;      // this rank's part comes before its children's
};

// Binomial: log2(n) levels. Relative to the root, rank v covers v up to the next subtree, so parts are reduced in rank
// order from the root on.
TreePlace binomial_place(int rank, int root, int ranks);

// A chain around the ring: away from the root for broadcast, towards it for reduce. It starts at root + 1 there.
TreePlace broadcast_chain_place(int rank, int root, int ranks);
TreePlace reduce_chain_place(int rank, int root, int ranks);

// Ops that one pass needs, down or up.
std::size_t tree_ops(const TreePlace& place) noexcept;

// Down: the root's `data` reaches everybody's. Uses the ops from `first_op` on.
Outcome tree_broadcast(NetCall& net, std::size_t first_op, const TreePlace& place, std::byte* data,
                       std::size_t bytes) noexcept;

// Up: everybody's `call.input` is reduced into the root's `result`. Greets, once it has its memory. Does not await its
// last sends: finish() does.
Outcome tree_reduce(NetCall& net, std::size_t first_op, const TreePlace& place, const Call& call, std::byte* result);

}  // namespace tutti
