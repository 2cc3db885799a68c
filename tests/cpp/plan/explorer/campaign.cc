#include "plan/explorer/campaign.h"

#include "plan/explorer/explorer.h"
#include "plan/explorer/permutations.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace tutti::plan::explorer {

using enum Search::Outcome;

void Tally::add(const Tally& other) {
  mutants += other.mutants;
  refused += other.refused;
  proven += other.proven;
  repaired += other.repaired;
  wrong += other.wrong;
  undecided += other.undecided;
  rejected_right += other.rejected_right;
  repaired_right += other.repaired_right;
  accepted_wrong.insert(accepted_wrong.end(), other.accepted_wrong.begin(), other.accepted_wrong.end());
  false_alarms.insert(false_alarms.end(), other.false_alarms.begin(), other.false_alarms.end());
  permuted += other.permuted;
  changed_by_permutation.insert(changed_by_permutation.end(), other.changed_by_permutation.begin(),
                                other.changed_by_permutation.end());
}

std::optional<Plan> loaded(const Plan& mutant) {
  try {
    return read_plan(write_plan(mutant, -1));
  } catch (const Error&) {
    return std::nullopt;
  }
}

Verdict judge(const Plan& plan, const std::string& name, Limits limits, Tally& tally) {
  ++tally.mutants;
  const Verdict verdict = verify(plan);
  const Finding finding = explore(plan, limits);
  if (finding.outcome == kUndecided) ++tally.undecided;
  if (finding.outcome == kWrong) ++tally.wrong;
  const auto accepted = [&](const Finding& as_accepted) {
    if (as_accepted.outcome != kWrong) return;
    tally.accepted_wrong.push_back(name + ": " + std::string(to_string(verdict.outcome)) + ", but " + as_accepted.what);
  };
  switch (verdict.outcome) {
    case Outcome::kProven:
      ++tally.proven;
      accepted(finding);
      break;
    case Outcome::kProvenAfterRepair:
      ++tally.repaired;
      if (finding.outcome == kRight) ++tally.repaired_right;
      accepted(explore(repaired(plan, verdict.repairs), limits));
      break;
    case Outcome::kRejected:
      if (finding.outcome != kRight) break;
      ++tally.rejected_right;
      tally.false_alarms.push_back(name + ": " + std::string(to_string(verdict.fault.kind)) + ", " +
                                   verdict.fault.message);
  }
  return verdict;
}

void permute(const Plan& plan, const std::string& name, const Verdict& verdict, std::mt19937_64& random, Tally& tally) {
  const Permuted other = permuted(plan, random);
  const std::optional<Plan> mutant = loaded(other.plan);
  if (!mutant) {
    tally.changed_by_permutation.push_back(name + ": refused by the loader with other " + other.how);
    return;
  }
  ++tally.permuted;
  const Verdict after = verify(*mutant);
  if (after.outcome == verdict.outcome && after.same_bits == verdict.same_bits) return;
  tally.changed_by_permutation.push_back(name + ": " + std::string(to_string(verdict.outcome)) + ", but " +
                                         std::string(to_string(after.outcome)) + " with other " + other.how + ": " +
                                         (verdict.outcome == Outcome::kProven ? after : verdict).fault.message);
}

}  // namespace tutti::plan::explorer
