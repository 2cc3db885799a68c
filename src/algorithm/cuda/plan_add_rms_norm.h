// Which kernel of add_rms_norm.cuh runs a call, and what it is told. Depends, as choice.h, only on what all ranks know
// equally.
#pragma once

#include <optional>
#include <string>

#include "algorithm/cuda/add_rms_norm_args.h"
#include "algorithm/cuda/choice.h"
#include "tutti/cuda_serving.h"

namespace tutti::cuda {

// Throws Error(kInvalidArgument), or Error(kUnsupported) for rows that the kernels do not take.
void check_add_rms_norm(const CudaAddRmsNorm& call);

struct NormPlan {
  NormPattern pattern = NormPattern::kBulk;
  int blocks = 1;
  int threads = kNormThreads;  // workers
  AddRmsNormArgs args;         // without the fingerprint
};
// `forced` counts where its kernel takes the call.
NormPlan plan_add_rms_norm(const CudaAddRmsNorm& call, int size, int most_blocks, bool ll128,
                           const std::optional<ForcedChoice>& forced);

// "ll_one_shot@4x256", as to_string(Choice).
std::string to_string(const NormPlan& plan);
// The same for name_of().
Choice choice_of(const NormPlan& plan) noexcept;

}  // namespace tutti::cuda
