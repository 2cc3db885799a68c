// Single changes of a plan, of the kinds that programs get wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan::explorer {

struct Mutation {
  std::string name;  // "rank 1, block 0, operation 3: dropped"
  std::function<void(Plan&)> apply;
};

// All of them, in a fixed order. Many give plans that the loader refuses.
std::vector<Mutation> mutations_of(const Plan& plan);

}  // namespace tutti::plan::explorer
