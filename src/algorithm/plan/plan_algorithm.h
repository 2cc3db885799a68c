// Plans as algorithms among the ranks of one host.
//
// A call runs as invocations of the plan on segments that stay in the caches; a plan that keeps nothing in scratch and
// works on mapped tensors takes a message whole. Where peers reach into a buffer that not all ranks map, a shadow of it
// in mapped memory takes its place, a segment at a time; a buffer that only its own rank touches is used where it lies.
//
// Every rank owns one block of its arena for a plan: counters and scratch (executor/cpu/tables.h), then shadows. It is
// made at the first call, in which the ranks tell each other where theirs lies; from then on nothing is set up.
//
// Thread rule: unlike other algorithms these belong to one communicator and are run under its lock.
#pragma once

#include <memory>
#include <vector>

#include "algorithm/algorithm.h"
#include "algorithm/plan/plan_files.h"

namespace tutti {

// One for each plan that is for `ranks` ranks and for a collective of Tutti. Throws Error naming the file of a plan
// that cannot run. `host` outlives them.
std::vector<std::shared_ptr<const Algorithm>> plan_algorithms(const PlanFiles& plans, HostChannel& host);

}  // namespace tutti
