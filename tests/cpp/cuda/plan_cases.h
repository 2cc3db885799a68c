// The plans that are tried as GPUs run them, and the calls for which they are compiled.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "executor/cuda/device_plan.h"
#include "executor/executor_plans.h"
#include "tutti/types.h"

namespace tutti::cuda::test {

struct PlanRequest {
  std::size_t bytes = 0;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool in_place = false;
  int workers = 0;
  bool mapped = false;  // peers reach into tensors, not into their shadows
};

// The programs that come with the language, for three ranks.
std::vector<plan::NamedPlan> programs();
// Some for two ranks, in several instances that share the work.
std::vector<plan::NamedPlan> replicated_programs();

// The plan with each of its reductions left open.
std::shared_ptr<const plan::Plan> any_reduction(plan::Plan plan);

// Calls that are compiled when the tests are built: all plans, and some in many types, operations and segments.
struct CompiledRequest {
  plan::NamedPlan plan;
  PlanRequest request;
  executor::DeviceLimits limits;
};
std::vector<CompiledRequest> compiled_requests();

}  // namespace tutti::cuda::test
