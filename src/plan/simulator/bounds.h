// What no plan of a collective can beat on a topology.
//
// Latency: the largest least latency from a rank to one that needs its data. Bandwidth: for every rank's node and every
// group of the topology, the bytes that must enter (and leave) it over the bandwidth of the links that do; and for
// all-reduce, where no switch reduces, the 2·(n − 1)·B bytes that the n nodes must receive together over the bandwidth
// of all links into them. Both are 0 for collectives without a defined result and for sendrecv, whose pairs are the
// plan's own choice.
//
// Thread rule: functions.
#pragma once

#include <cstdint>

#include "plan/plan.h"
#include "plan/simulator/routes.h"

namespace tutti::plan {

struct Bounds {
  double latency_us = 0;
  double bandwidth_us = 0;
};

Bounds bounds_of(const Plan& plan, const Topology& topology, Routes& routes, std::int64_t block_bytes);

// The bytes of a call as algorithm bandwidth counts them (nccl-tests): all rank blocks of the larger buffer.
double counted_bytes(const Plan& plan, std::int64_t block_bytes);

}  // namespace tutti::plan
