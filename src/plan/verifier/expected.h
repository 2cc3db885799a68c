// What the collective promises every rank's output to hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/verifier/layout.h"
#include "plan/verifier/values.h"

namespace tutti::plan {

class Expected {
 public:
  Expected(const Plan& plan, const Layout& layout, const Values& values);

  // True if the collective says what `rank` has in its output.
  bool defined(std::int32_t rank) const;

  // Empty if `value` is right for this unit of the output, else what is wrong.
  std::string fault_of(std::int32_t rank, std::int64_t chunk, std::int64_t unit, ValueId value,
                       std::int32_t invocation);

  // So far.
  bool same_bits() const { return same_bits_; }

 private:
  struct Wanted {
    bool reduced = false;
    std::int32_t rank = -1;  // of one input
    std::int64_t chunk = 0;
  };
  Wanted wanted(std::int32_t rank, std::int64_t chunk) const;
  std::string reduction_fault(const Wanted& wanted, std::int64_t unit, ValueId value, std::int32_t invocation);
  std::string send_fault(std::int32_t rank, std::int64_t chunk, std::int64_t unit, ValueId value,
                         std::int32_t invocation);
  std::string found(ValueId value) const;

  const Plan& plan_;
  const Layout& layout_;
  const Values& values_;
  std::int64_t block_chunks_;
  bool same_bits_ = true;
  std::optional<ReduceKind> reduction_;  // of all outputs: a caller asks for one
  std::vector<ValueId> first_;        // all-reduce: by chunk and unit, of the first rank that came, in the first call
  std::vector<std::int32_t> source_;  // sendrecv: whose input a rank has
  std::vector<std::int32_t> taker_;   // sendrecv: who has a rank's input
};

}  // namespace tutti::plan
