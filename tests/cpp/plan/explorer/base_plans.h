// The right plans whose mutants are explored: small programs by hand, which together use every operation, and the
// built-in programs of the language for three ranks (programs/, written by tests/python/language/explored_programs.py).
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan::explorer {

struct BasePlan {
  std::string name;
  Plan plan;
};

std::vector<BasePlan> plans_by_hand();
// Those and the built-in programs, which lie in `folder`.
std::vector<BasePlan> base_plans(const std::string& folder);

}  // namespace tutti::plan::explorer
