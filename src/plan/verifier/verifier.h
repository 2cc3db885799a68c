// Proves that a plan computes its collective, cannot deadlock, has no race, keeps its packets apart and leaves its
// counters as they were; or says what is wrong.
//
// A plan has no control that depends on data, and every counter has one thread block that raises it and one that takes
// from it (check_structure). So matching, deadlock and happens-before are the same under every schedule, and one
// abstract execution of all ranks decides. It runs two calls back to back, three if scratch has two halves. A plan with
// loops is executed at every length of chunks that can make a difference (lengths.h).
//
// What is checked, what a repair is and what operations mean: docs/verifier.md.
#pragma once

#include "plan/plan.h"
#include "plan/verifier/budget.h"
#include "plan/verifier/verdict.h"

namespace tutti::plan {

// The plan as it stands: kProven or kRejected; a plan whose proof would pass the limits is rejected as kTooLarge.
Verdict verify_strictly(const Plan& plan, const ProofLimits& limits = {});

// Also tries repairs, which together may take as many steps again.
Verdict verify(const Plan& plan, const ProofLimits& limits = {});

// The plan with the repairs of a verdict, as executors run it. It is proven strictly.
Plan repaired(Plan plan, const std::vector<Repair>& repairs);

}  // namespace tutti::plan
