// Symbolic contents of memory: what every rank's input chunks become, as ordered trees of reductions.
//
// Equal trees have equal numbers, so equal numbers mean equal bits: a reduction does not look at the order of its first
// two operands (floating-point addition commutes, bit for bit), but at that of all others, and one of several operands
// is no tree of smaller ones, since it rounds narrow types once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "plan/plan.h"
#include "plan/verifier/budget.h"

namespace tutti::plan {

using ValueId = std::int32_t;
inline constexpr ValueId kUndefined = 0;  // nobody's data: scratch that was never written

class Values {
 public:
  Values(std::size_t ranks, Budget& budget);

  // What a value is made of.
  struct Summary {
    bool sound = false;  // inputs of one place and one call under one reduction, none twice where that matters
    bool reduced = false;
    ReduceKind reduce = ReduceKind::kSum;
    std::int64_t place = 0;  // of the inputs: chunk and unit within it
    std::int32_t invocation = 0;
    std::int32_t count = 0;  // ranks in it
    std::int32_t rank = -1;  // the one, if count is 1
  };

  ValueId input(std::int32_t rank, std::int64_t place, std::int32_t invocation);
  // By one operation, in this order.
  ValueId reduce(ReduceKind kind, std::vector<ValueId> parts);

  const Summary& summary(ValueId value) const { return nodes_[value].summary; }
  bool contains(ValueId value, std::int32_t rank) const;

 private:
  struct Node {
    Summary summary;
    std::vector<std::uint64_t> members;  // bit per rank
  };
  ValueId combine(ReduceKind kind, std::vector<ValueId> parts);
  ValueId keep(Node node, std::size_t key);

  std::size_t words_;
  Budget& budget_;
  std::vector<Node> nodes_;
  std::map<std::vector<std::int64_t>, ValueId> known_;
};

}  // namespace tutti::plan
