// Where a thread block does the same again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

// Operations [begin, begin + round · rounds) of rank 0 of which each is like the one a round later.
struct Repetition {
  std::size_t begin = 0;
  std::size_t round = 0;
  std::int64_t rounds = 0;
};

// From the first operation on, each as long as can be; rounds of at most 64 operations, at least 8 of them.
std::vector<Repetition> repetitions_of(const std::vector<Operation>& operations);

}  // namespace tutti::plan
