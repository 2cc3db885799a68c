// Which executions decide, and the search for repairs.
#include "plan/verifier/verifier.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/operations.h"
#include "plan/verifier/execution.h"
#include "plan/verifier/input_writes.h"
#include "plan/verifier/repair.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

using Kinds = std::vector<Repair::Kind>;

// Tried in this order: few kinds before many, cheap ones first; those that limit the size of messages last.
std::vector<Kinds> combinations() {
  constexpr auto kFlush = Repair::Kind::kFlush;
  constexpr auto kRelaxed = Repair::Kind::kSignal;
  constexpr auto kFence = Repair::Kind::kFence;
  constexpr auto kSize = Repair::Kind::kSize;
  return {{kFlush},
          {kRelaxed},
          {kFence},
          {kFlush, kRelaxed},
          {kFlush, kFence},
          {kRelaxed, kFence},
          {kFlush, kRelaxed, kFence},
          {kSize},
          {kSize, kFlush},
          {kSize, kRelaxed},
          {kSize, kFlush, kRelaxed}};
}

// A misspelt collective would be proven to compute anything.
void require_known(const Plan& plan) {
  if (plan.collective != PlanCollective::kCustom || plan.collective_name == to_string(PlanCollective::kCustom)) return;
  throw FaultFound{{FaultKind::kUnchecked,
                    "nothing says what the collective \"" + plan.collective_name +
                        "\" computes, so there is no result to check; plans whose results nobody checks are \"" +
                        std::string(to_string(PlanCollective::kCustom)) + "\" or \"" +
                        std::string(to_string(PlanCollective::kTest)) + "\"",
                    {}}};
}

Verdict examine(const Plan& plan, Budget& budget) {
  Verdict verdict;
  verdict.invocations = plan.double_scratch ? 3 : 2;
  verdict.checked = rules_of(plan.collective).defines_result;
  try {
    require_known(plan);
    if (std::optional<Fault> fault = undeclared_input_write(plan)) throw FaultFound{std::move(*fault)};
    verdict.same_bits = true;
    for (const Cut& cut : deciding_cuts(plan)) {
      budget.begin();
      Execution execution(plan, cut, verdict.invocations, budget);
      execution.run();
      verdict.same_bits = verdict.same_bits && execution.same_bits();
    }
    verdict.outcome = Outcome::kProven;
  } catch (FaultFound& found) {
    verdict.outcome = Outcome::kRejected;
    verdict.same_bits = false;
    verdict.fault = std::move(found.fault);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    verdict.outcome = Outcome::kRejected;
    verdict.same_bits = false;
    verdict.fault = {FaultKind::kTooLarge, error.what(), {}};
  }
  return verdict;
}

}  // namespace

Verdict verify_strictly(const Plan& plan, const ProofLimits& limits) {
  Budget budget(limits);
  return examine(plan, budget);
}

Verdict verify(const Plan& plan, const ProofLimits& limits) {
  if (std::optional<Fault> undeclared = undeclared_input_write(plan)) {
    const Repair declare{Repair::Kind::kInput, 0, 0, -1, -1, -1, 0};
    Verdict declared = verify(repaired(plan, {declare}), limits);
    if (declared.outcome == Outcome::kRejected) return declared;
    if (declared.outcome == Outcome::kProven) declared.fault = std::move(*undeclared);
    declared.outcome = Outcome::kProvenAfterRepair;
    declared.repairs.insert(declared.repairs.begin(), declare);
    return declared;
  }
  Verdict strict = verify_strictly(plan, limits);
  // Only order can be repaired. A value that came too late may show as a wrong one before the race does.
  constexpr std::array kOfOrder{FaultKind::kRace, FaultKind::kWrongResult, FaultKind::kLostData, FaultKind::kPackets};
  if (std::find(kOfOrder.begin(), kOfOrder.end(), strict.fault.kind) == kOfOrder.end()) return strict;
  Budget budget(limits);
  const auto proves = [&](const std::vector<Repair>& repairs) {
    return !budget.exhausted() && examine(repaired(plan, repairs), budget).outcome == Outcome::kProven;
  };
  for (const Kinds& kinds : combinations()) {
    std::vector<Repair> repairs;
    bool room = true;
    for (const Repair::Kind kind : kinds) {
      const std::vector<Repair> of_kind = possible_repairs(plan, kind);
      room = room && !of_kind.empty();
      repairs.insert(repairs.end(), of_kind.begin(), of_kind.end());
    }
    if (!room) continue;
    if (budget.exhausted()) break;
    Verdict better = examine(repaired(plan, repairs), budget);
    if (better.outcome != Outcome::kProven) continue;
    better.outcome = Outcome::kProvenAfterRepair;
    better.fault = std::move(strict.fault);
    better.repairs = necessary_repairs(std::move(repairs), proves);
    return better;
  }
  return strict;
}

}  // namespace tutti::plan
