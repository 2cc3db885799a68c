// The verifier against the explorer, mutant by mutant.
#pragma once

#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "plan/explorer/search.h"
#include "plan/plan.h"
#include "plan/verifier/verdict.h"

namespace tutti::plan::explorer {

struct Tally {
  std::size_t mutants = 0;  // that the loader accepts and that differ from their plan
  std::size_t refused = 0;  // by the loader
  std::size_t proven = 0;
  std::size_t repaired = 0;
  std::size_t wrong = 0;           // for the explorer, as they stand
  std::size_t undecided = 0;       // by the explorer
  std::size_t rejected_right = 0;  // false alarms
  std::size_t repaired_right = 0;  // repaired without need
  std::vector<std::string> accepted_wrong;
  std::vector<std::string> false_alarms;
  std::size_t permuted = 0;
  std::vector<std::string> changed_by_permutation;

  void add(const Tally& other);
};

// As a plan comes from a file; empty if the loader refuses it.
std::optional<Plan> loaded(const Plan& mutant);

// Explores one mutant that was loaded, and notes what both say; `name` tells where it comes from. What the verifier
// says.
Verdict judge(const Plan& plan, const std::string& name, Limits limits, Tally& tally);

// Notes whether the verdict on a plan is another one if the plan is permuted.
void permute(const Plan& plan, const std::string& name, const Verdict& verdict, std::mt19937_64& random, Tally& tally);

}  // namespace tutti::plan::explorer
