// The part of check_structure that looks at counters: signals, semaphores, barriers.
#pragma once

#include "plan/links.h"
#include "plan/plan.h"

namespace tutti::plan {

// Every counter has at most one thread block that raises it and one that takes from it: only then does the outcome of
// a plan not depend on the schedule, which the verifier builds on. Channels that signal or wait are paired. Exactly
// as many thread blocks meet at a barrier as it says.
void check_counters(const Plan& plan, const Links& links);

}  // namespace tutti::plan
