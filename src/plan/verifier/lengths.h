// Which lengths of a chunk decide whether a plan with loops is right, and how each of them is cut into units.
//
// What a loop does changes where its iterations begin to cut a chunk elsewhere: where a number of chunks fills a number
// of units. Between two such lengths all messages are alike. So every such length is looked at, a length below the
// first, and lengths in between where loops differ in units or chunks; up to as many iterations of each loop as credits
// and the ring of scratch can make a difference.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

// A length of chunks, and how finely it is cut. Every part of a thread block group and every iteration covers whole
// units.
struct Cut {
  std::int64_t units = 1;       // a chunk
  std::int64_t tick_bytes = 0;  // what all loops move a multiple of in an iteration; 0 without loops
  std::int64_t tick_units = 0;  // … in units
  std::int64_t ring_units = 0;  // of a chunk of scratch that wraps; 0 if it does not

  std::int64_t units_of(const IterationContext& loop) const { return loop.unit_bytes / tick_bytes * tick_units; }
};

// Ascending; one if there is no loop. Throws Unsupported past what can be cut.
std::vector<Cut> deciding_cuts(const Plan& plan);

}  // namespace tutti::plan
