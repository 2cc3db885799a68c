// Changes of a plan that change nothing: other numbers for ranks, thread blocks and semaphores, another order of what
// does not depend on each other, a loop or a chunk beside all others. No verdict may depend on them.
#pragma once

#include <random>
#include <string>

#include "plan/plan.h"

namespace tutti::plan::explorer {

struct Permuted {
  Plan plan;
  std::string how;  // "thread blocks, ranks"
};

// Several at a time, drawn at random; those that the plan has no room for are left out.
Permuted permuted(const Plan& plan, std::mt19937_64& random);

}  // namespace tutti::plan::explorer
