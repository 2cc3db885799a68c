// What MSCCL++'s executor (0.9) can hold and do.
#pragma once

#include "plan/plan.h"

namespace tutti::plan {

// Throws Unsupported, with the JSON path, at the first thing that executor could not run.
void check_mscclpp_limits(const Plan& plan);

}  // namespace tutti::plan
