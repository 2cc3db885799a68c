// Right plans with loops, whose mutants are explored.
#pragma once

#include <vector>

#include "plan/explorer/base_plans.h"

namespace tutti::plan::explorer {

std::vector<BasePlan> plans_with_loops();

}  // namespace tutti::plan::explorer
