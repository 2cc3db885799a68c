// The compiled plans of compiled_requests(), by the order in which its calls ask for them: for each request, the ranks
// of each of its segments.
#pragma once

#include <cstddef>
#include <map>

#include "cuda/host_plans.h"

namespace tutti::cuda::test {

using CompiledCases = std::map<std::size_t, CompiledPlan>;

// In sources that emit_compiled_cases writes.
void add_compiled_cases_0(CompiledCases& cases);
void add_compiled_cases_1(CompiledCases& cases);
void add_compiled_cases_2(CompiledCases& cases);
void add_compiled_cases_3(CompiledCases& cases);

inline CompiledCases compiled_cases() {
  CompiledCases cases;
  for (const auto add : {add_compiled_cases_0, add_compiled_cases_1, add_compiled_cases_2, add_compiled_cases_3}) {
    add(cases);
  }
  return cases;
}

}  // namespace tutti::cuda::test
