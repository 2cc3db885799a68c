// One call of a plan that is interpreted.
#pragma once

#include "algorithm/cuda/plan_call.cuh"
#include "executor/cuda/interpreter.cuh"

namespace tutti::cuda {

using executor::PlanArgs;

template <class R, class Team>
TUTTI_DEVICE void run_plan(const Team& team, const DeviceWorld& world, const PlanArgs& args) {
  run_plan_blocks<executor::PlanBlock<R, Team>>(team, world, args);
}

}  // namespace tutti::cuda
