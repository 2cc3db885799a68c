// Small plans, right and wrong ones of every class, with the verdict that each must get.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/verifier/verdict.h"

namespace tutti::plan {

struct Case {
  std::string name;
  Plan plan;
  Outcome outcome = Outcome::kProven;
  FaultKind fault = FaultKind::kNone;  // of the plan as it stands
  std::string says = {};               // part of its message
};

std::vector<Case> right_cases();
std::vector<Case> repairable_cases();
std::vector<Case> wrong_cases();

}  // namespace tutti::plan
