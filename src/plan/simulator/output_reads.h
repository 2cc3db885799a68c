// Which chunks of outputs operations read within a call: what is put into others is not moved on to its reader's cache.
//
// Thread rule: a value, const after construction. It refers to no plan.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

class OutputReads {
 public:
  OutputReads() = default;                 // not known, so all
  explicit OutputReads(const Plan& plan);  // in place all are: an input may lie there

  // Whether any of the operand's chunks of the output of `rank` is read.
  bool any_of(std::int32_t rank, const Operand& operand) const;

 private:
  void add(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op);

  std::vector<std::vector<bool>> chunks_;  // [rank][chunk]
};

}  // namespace tutti::plan
