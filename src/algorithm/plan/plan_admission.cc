#include "algorithm/plan/plan_admission.h"

#include <utility>

#include "algorithm/plan/plan_runner.h"

namespace tutti {
namespace {

// Of one plan: groups of other ranks on other hosts. Past this all are tried again.
constexpr std::size_t kMostPlaces = 256;

}  // namespace

PlanAdmissions& PlanAdmissions::of_process() {
  static PlanAdmissions admissions;
  return admissions;
}

void PlanAdmissions::check(const std::shared_ptr<const plan::Plan>& plan, const GroupPlace& world) {
  const bool crowded = world.host != nullptr && world.host->crowded();
  const Place place{world.rank, crowded, world.ranks};
  Verdict verdict;
  if (!find(plan, place, verdict)) {
    // Not under the mutex: ranks that are threads of one process try at the same time, each for its own place.
    try {
      PlanRunner::check(plan, world);
    } catch (const Error& error) {
      verdict = {error.kind(), error.what()};
    }
    remember(plan, place, verdict);
  }
  if (!verdict.fault.empty()) throw_error(verdict.kind, verdict.fault);
}

bool PlanAdmissions::find(const std::shared_ptr<const plan::Plan>& plan, const Place& place, Verdict& verdict) const {
  const std::lock_guard lock(mutex_);
  const auto places = verdicts_.find(plan);
  if (places == verdicts_.end()) return false;
  const auto found = places->second.find(place);
  if (found == places->second.end()) return false;
  verdict = found->second;
  return true;
}

void PlanAdmissions::remember(const std::shared_ptr<const plan::Plan>& plan, Place place, const Verdict& verdict) {
  const std::lock_guard lock(mutex_);
  ++trials_;
  std::erase_if(verdicts_, [](const auto& entry) { return entry.first.expired(); });
  std::map<Place, Verdict>& places = verdicts_[plan];
  if (places.size() >= kMostPlaces) places.clear();
  places.insert_or_assign(std::move(place), verdict);
}

std::uint64_t PlanAdmissions::trials() const {
  const std::lock_guard lock(mutex_);
  return trials_;
}

}  // namespace tutti
