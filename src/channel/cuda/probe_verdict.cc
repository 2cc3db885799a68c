#include "channel/cuda/probe_verdict.h"

namespace tutti::cuda {

ProbeVerdict judge_probes(const std::vector<ProbeResult>& by_rank) {
  ProbeVerdict verdict;
  std::string torn;
  const int size = static_cast<int>(by_rank.size());
  for (int r = 0; r < size; ++r) {
    const ProbeResult bits = by_rank[static_cast<std::size_t>(r)];
    for (int p = 0; p < size; ++p) {
      if (p == r) continue;
      const std::string rank = "rank " + std::to_string(r), peer = "rank " + std::to_string(p);
      if ((bits >> p & 1) == 0) {
        if (verdict.whole) verdict.problem = "data from " + peer + " does not reach " + rank;
        verdict.whole = false;
      } else if ((bits & native_atomics_with(p)) == 0) {
        if (torn.empty()) torn = rank + "'s driver knows of no native atomics over its link to the GPU of " + peer;
      } else if ((bits >> (32 + p) & 1) == 0) {
        if (torn.empty()) torn = "those from " + peer + " come torn to " + rank;
      } else {
        continue;
      }
      verdict.lines = false;
    }
  }
  if (verdict.whole) verdict.problem = torn;
  return verdict;
}

}  // namespace tutti::cuda
