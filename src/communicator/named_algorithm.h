// Algorithms that a program names or gives, on every kind of device: what their limits say of a call, how one that does
// not fit is refused, and what a selector function is asked.
#pragma once

#include "algorithm/algorithm.h"
#include "tutti/call.h"
#include "tutti/user_algorithm.h"

namespace tutti {

// What the number of ranks rules out for good.
inline bool is_for_ranks(const AlgorithmLimits& limits, int ranks, int hosts) noexcept {
  return (limits.ranks == 0 || limits.ranks == ranks) &&
         (limits.ranks_per_host == 0 || limits.ranks_per_host * hosts == ranks);
}

// Throws Error(kInvalidArgument) if an algorithm that a call names computes something else.
void check_computes(const UserAlgorithm& algorithm, const CallShape& shape);
// Throws Error(kInvalidArgument) with `reason`, why the algorithm that a call names cannot run it; null: it can.
void refuse_named(const UserAlgorithm& algorithm, const CallShape& shape, const char* reason);

AlgorithmRequest request_of(const Call& call, const CallShape& shape, int rank) noexcept;

}  // namespace tutti
