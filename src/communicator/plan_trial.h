// Plans on GPUs as `tutti plan` sees them: whether they fit, and all ranks in this process.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "executor/cpu/trial.h"
#include "plan/plan.h"
#include "tutti/error.h"

namespace tutti {

struct DeviceFit {
  std::string refused;            // why a GPU cannot run it; empty: it can, and needs what follows
  int blocks = 0;                 // that wait for each other, so all of them at once
  int threads = 0;                // of a block, with those that begin and end a call
  std::size_t segment_bytes = 0;  // of a rank block: the most that one kernel takes
  std::size_t memory_bytes = 0;   // that peers map
  std::size_t records = 0;        // of a full segment, of the rank that has most
};

// Where kernels have at most `blocks` thread blocks at once. Needs no GPU.
DeviceFit fit_on_gpu(const std::shared_ptr<const plan::Plan>& plan, int blocks);

// executor::try_plan on the GPUs of this machine, which several ranks may share: ranks are threads, a call is timed
// with its wait on the host. The plan is proven first. Throws Error(kUnsupported) without a GPU, and what refuses()
// where they cannot run it; what else goes wrong is the report's fault.
executor::TrialReport try_plan_on_gpus(const std::string& text, const executor::TrialRequest& request);

// Whether the plan cannot be tried, rather than that it is wrong.
bool refuses(const Error& error) noexcept;
// Of what the ranks of a trial have thrown, by rank, null where nothing: what the rest follows from. A rank that fails
// aborts the others, so what they throw says least.
std::exception_ptr cause_among(const std::vector<std::exception_ptr>& failures) noexcept;

}  // namespace tutti
