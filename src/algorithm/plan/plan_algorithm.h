// Plans as algorithms of a communicator: which calls they serve. How they run is in plan_runner.h.
//
// Thread rule: unlike other algorithms these belong to one communicator and are run under its lock.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "algorithm/algorithm.h"
#include "algorithm/group_place.h"
#include "algorithm/plan/plan_files.h"

namespace tutti {

// Null if a group with as many ranks as the plan can run a call of `collective` and this shape by it, on any kind of
// device, else the reason why not.
const char* plan_refusal(const plan::Plan& plan, Collective collective, const CallShape& shape) noexcept;

// One for each plan that is for `ranks` ranks and for a collective of Tutti. Throws Error naming the file of a plan
// that cannot run; one that only does not suit several hosts refuses their calls and says why. The world's channel
// outlives them.
std::vector<std::shared_ptr<const Algorithm>> plan_algorithms(const std::vector<PlanFile>& plans,
                                                              const GroupPlace& world);

}  // namespace tutti
