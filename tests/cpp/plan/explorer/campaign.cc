#include "plan/explorer/campaign.h"

#include "plan/explorer/explorer.h"
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
  for (const auto& [kind, count] : other.false_alarm_kinds) false_alarm_kinds[kind] += count;
}

std::optional<Plan> loaded(const Plan& mutant) {
  try {
    return read_plan(write_plan(mutant, -1));
  } catch (const Error&) {
    return std::nullopt;
  }
}

void judge(const Plan& plan, const std::string& name, Limits limits, Tally& tally) {
  ++tally.mutants;
  const Verdict verdict = verify(plan);
  const Finding finding = explore(plan, limits);
  if (finding.outcome == kUndecided) ++tally.undecided;
  if (finding.outcome == kWrong) ++tally.wrong;
  const auto accepted_wrong = [&](const std::string& what) {
    tally.accepted_wrong.push_back(name + ": " + std::string(to_string(verdict.outcome)) + ", but " + what);
  };
  switch (verdict.outcome) {
    case Outcome::kProven:
      ++tally.proven;
      if (finding.outcome == kWrong) accepted_wrong(finding.what);
      return;
    case Outcome::kProvenAfterRepair: {
      ++tally.repaired;
      if (finding.outcome == kRight) ++tally.repaired_right;
      const Finding after = explore(repaired(plan, verdict.repairs), limits);
      if (after.outcome == kWrong) accepted_wrong(after.what);
      return;
    }
    case Outcome::kRejected:
      if (finding.outcome != kRight) return;
      ++tally.rejected_right;
      ++tally.false_alarm_kinds[std::string(to_string(verdict.fault.kind))];
      tally.false_alarms.push_back(name + ": " + std::string(to_string(verdict.fault.kind)) + ", " +
                                   verdict.fault.message);
  }
}

}  // namespace tutti::plan::explorer
