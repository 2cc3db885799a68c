// How long a plan takes on a topology: discrete events, one call.
//
//   - The operations of a thread block run in order, each when the one before it is over. Synchronous ones are over
//   when
//     their last byte has left (put) or arrived (get); what was written is seen one latency later.
//   - Puts through a port take the block no time: each channel is a queue of its own, one transfer after the other.
//   - Signals take a route's latency and follow the data. Packets are seen when they arrive; who reads them waits.
//   - Bytes of concurrent transfers share links fairly (network.h).
// Costs, bounds and limits of the model: docs/simulator.md.
//
// Thread rule: functions over values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/simulator/bounds.h"
#include "plan/simulator/topology.h"

namespace tutti::plan {

// What one operation did, or one item of a port channel's queue.
struct TimelineStep {
  std::int32_t rank = 0;
  std::int32_t block = 0;
  std::int32_t port = -1;  // the port channel whose queue did it
  std::int32_t op = 0;
  std::int32_t inner = -1;  // in a pipeline
  std::int32_t cause = -1;  // the step that let this one begin; earlier in the timeline
  std::int64_t iteration = 0;
  OpKind kind = OpKind::kNop;
  Picoseconds turn = 0;   // from when on it waited
  Picoseconds begin = 0;  // … until it could do its work
  Picoseconds end = 0;
  Picoseconds seen = 0;  // when what it wrote or signalled has arrived
  double bytes = 0;      // of payload, all destinations together
};

struct LinkUse {
  std::int32_t link = 0;
  double bytes = 0;
  double share = 0;  // of what the link could have carried in the time
};

struct Simulation {
  bool complete = true;  // false: over budget, and `time_us` is an estimate
  double done = 1;       // the part of all operations that was simulated
  double time_us = 0;
  double algorithm_gbs = 0;  // counted_bytes over time
  Bounds bounds;
  std::vector<TimelineStep> steps;
  std::vector<std::int32_t> critical_path;  // steps, the first one first
  std::vector<LinkUse> links;               // those that carried something, the busiest first
  std::string basis;                        // what was simulated and how the rest follows; empty if all was (steady.h)
};

// `block_bytes` is the size of a rank block, as in Sizes. Throws InvalidArgument if the plan gets stuck (with the
// blocked operations) or the topology has too few ranks. After `budget_s` seconds of its own time it stops with an
// estimate: the simulated time over the part of the operations that were done in it.
Simulation simulate(const Plan& plan, const Topology& topology, std::int64_t block_bytes,
                    std::optional<double> budget_s = std::nullopt);

}  // namespace tutti::plan
