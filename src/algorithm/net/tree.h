// Trees of ranks, and passing segments down or up along them.
#pragma once

#include <array>
#include <cstddef>
#include <limits>

#include "algorithm/net/net_algorithm.h"
#include "base/rank_map.h"

namespace tutti {

// Where a rank stands in a tree.
class TreePlace {
 public:
  int parent = -1;  // -1 at the root

  void add_child(int rank) noexcept { ranks_[count_++] = rank; }
  std::size_t children() const noexcept { return count_; }
  // In the order in which their parts are reduced, behind this rank's own.
  int child(std::size_t i) const noexcept { return ranks_[i]; }

  static constexpr std::size_t kMostChildren = std::numeric_limits<int>::digits;

 private:
  std::array<int, kMostChildren> ranks_;
  std::size_t count_ = 0;
};

// Binomial: log2(n) levels. Relative to the root, rank v covers v up to the next subtree, so parts are reduced in rank
// order from the root on.
TreePlace binomial_place(int rank, int root, int ranks) noexcept;

// A chain of all ranks from the root on. Where `hosts` is given, host by host: nothing comes to a host twice.
TreePlace chain_place(int rank, int root, int ranks, const RankMap* hosts) noexcept;

// Ops that one pass needs, down or up.
std::size_t tree_ops(const TreePlace& place) noexcept;

// Down: the root's `data` reaches everybody's. Uses the ops from `first_op` on.
Outcome tree_broadcast(NetCall& net, std::size_t first_op, const TreePlace& place, std::byte* data,
                       std::size_t bytes) noexcept;

// Up: everybody's `call.input` is reduced into the root's `result`. Greets. Does not await its last sends: finish()
// does. Takes of the call's memory what tree_reduce_memory() says.
std::size_t tree_reduce_memory(const TreePlace& place, const Call& call) noexcept;
Outcome tree_reduce(NetCall& net, std::size_t first_op, const TreePlace& place, const Call& call, std::byte* result);

}  // namespace tutti
