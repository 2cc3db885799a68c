// What the files that make plans for the executors' tests share.
#pragma once

#include <cstdint>

#include "plan/plan_builder.h"
#include "plan/structure.h"

namespace tutti::plan {

inline constexpr ChannelKind kMemory = ChannelKind::kMemory;

// The builder's plan, with the reduction that its operations have in common.
inline Plan finished(PlanBuilder& builder) {
  builder.plan.reduce = common_reduction(builder.plan);
  return builder.plan;
}

// visit(peer) for each peer of `rank`, from the next one on.
template <class Visit>
void for_peers(std::int32_t rank, std::int32_t ranks, const Visit& visit) {
  for (std::int32_t i = 1; i < ranks; ++i) visit((rank + i) % ranks);
}

}  // namespace tutti::plan
