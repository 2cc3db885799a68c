// Runs a plan under random schedules on a memory where nothing is visible before it has to be.
//
// Shares no code with the verifier and works differently: it moves numbers, not symbols, and knows no clocks. Every
// cell keeps its history; whoever has not synchronised may read any older entry, and writes land in any order that
// synchronisation leaves open. So a missing order shows, in some schedule, as a wrong number, a deadlock or a token
// left over. It samples: a plan that survives is not proven.
//
// Knows: nop, signals and waits through memory (relaxed too), operations on plain data and packets. Sums only.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace tutti::plan {

// Empty if the plan did what it should for `calls` calls under the schedule of `seed`; else what went wrong.
std::string run_random_schedule(const Plan& plan, std::int32_t calls, std::uint64_t seed);

}  // namespace tutti::plan
