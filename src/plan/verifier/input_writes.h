// The caller's input is only the plan's to write if the plan is in place or says so (Plan::writes_input); then
// executors give it a copy.
//
// Thread rule: pure functions.
#pragma once

#include <optional>

#include "plan/plan.h"
#include "plan/verifier/verdict.h"

namespace tutti::plan {

// Why the plan as it stands is not proven, if it writes its input and does not say so.
std::optional<Fault> undeclared_input_write(const Plan& plan);

}  // namespace tutti::plan
