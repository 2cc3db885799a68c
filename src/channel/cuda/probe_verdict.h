// What the ranks make of their probes together: the same on all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::cuda {

// Of one rank, a bit for each peer p: p, its data came whole (algorithm/cuda/probe.cuh); 32 + p, its lines of 128 bytes
// did; and from the host, 16 + p, the driver says that this rank's atomics over the link to p are native.
using ProbeResult = std::uint64_t;
constexpr ProbeResult native_atomics_with(int peer) { return ProbeResult{1} << (16 + peer); }

struct ProbeVerdict {
  bool whole = true;    // all pairs can use each other's memory
  bool lines = true;    // and store lines of 128 bytes whole
  std::string problem;  // why not, with the first pair that cannot
};

// A probe that finds no torn line has not shown that there are none: where the hardware cuts or reorders stores, as it
// may over PCIe, native atomics are missing, too. So both count.
ProbeVerdict judge_probes(const std::vector<ProbeResult>& by_rank);

}  // namespace tutti::cuda
