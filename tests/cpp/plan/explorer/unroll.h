// Unrolls some calls of a plan into its events: what every operation waits for, loads and stores.
#pragma once

#include "plan/explorer/cells.h"
#include "plan/explorer/event_graph.h"
#include "plan/plan.h"

namespace tutti::plan::explorer {

// Throws WrongPlan if the plan deadlocks, leaves a counter changed, leaves its buffers, mixes packets and plain data in
// a chunk of scratch, or uses a half of scratch before its last use is over.
// Throws TooManyEvents past `most_events`.
Graph unroll(const Plan& plan, const Setting& setting, Terms& terms, std::size_t most_events);

}  // namespace tutti::plan::explorer
