// What the tuning table makes of calls on GPUs: the kernel or the plan that was the fastest. Knows nothing of CUDA.
//
// Thread rule: built once, then const; the plans are the communicator's, which outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "algorithm/cuda/choice.h"
#include "algorithm/tuned_rules.h"
#include "communicator/cuda/plan_table.h"

namespace tutti::cuda {

// A kernel, or else a plan.
struct TunedStep {
  ForcedChoice kernel;
  const TablePlan* plan = nullptr;
};

class TunedCalls {
 public:
  TunedCalls() = default;
  // `plans`: those that the rules may name. A name that stands for nothing here is passed over.
  TunedCalls(std::vector<TuningRule> rules, const std::vector<const TablePlan*>& plans);

  // The first in the order of what was measured for such a call that does not refuse it; null: as without a table.
  // `shape` and `on_gpu` are of the same call.
  const TunedStep* step_for(const CallShape& shape, const CudaShape& on_gpu) const noexcept;

  // For a call that has such a step: a line for it, "-> ll_one_shot@4x128: Tutti's own kernels, by the tuning
  // table; 3.21 us", one for each other algorithm that was measured, and where the times are from.
  std::string explain(const CallShape& shape, const CudaShape& on_gpu, const TunedStep& taken) const;

 private:
  const TunedRules<TunedStep>::Rule* rule_for(const CallShape& shape) const noexcept;

  TunedRules<TunedStep> rules_;
};

}  // namespace tutti::cuda
