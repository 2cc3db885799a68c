// Repairs of a plan: which there could be, and which it takes.
#pragma once

#include <functional>
#include <vector>

#include "plan/plan.h"
#include "plan/verifier/verdict.h"

namespace tutti::plan {

// Every repair of one kind (kSignal stands for kWait too) that the plan has room for.
std::vector<Repair> possible_repairs(const Plan& plan, Repair::Kind kind);

// As few of `repairs` as `proves` asks for, by leaving out alike ones together. `repairs` must prove the plan.
std::vector<Repair> necessary_repairs(std::vector<Repair> repairs,
                                      const std::function<bool(const std::vector<Repair>&)>& proves);

}  // namespace tutti::plan
