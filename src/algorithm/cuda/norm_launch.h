// How a call of all_reduce_add_rms_norm runs: in the one kernel of add_rms_norm.cuh, or as an all-reduce and a kernel
// that adds and normalises. Which of the two, and how the all-reduce runs, depends, as in choice.h, only on what all
// ranks know equally; where the sums lie between the kernels is this rank's own matter.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "algorithm/cuda/add_rms_norm_args.h"
#include "algorithm/cuda/choice.h"
#include "tutti/serving.h"

namespace tutti::cuda {

// Throws Error(kInvalidArgument), or Error(kUnsupported) for rows that the kernels do not take.
void check_add_rms_norm(const AddRmsNorm& call);

struct NormLaunch {
  bool one_kernel = false;
  Choice choice;             // of the kernel that communicates
  std::byte* sum = nullptr;  // of two kernels: the all-reduce's output
  // Of the kernel that normalises.
  bool aligned = false;  // all its memory is, to 16 bytes
  int vectors = 0;       // of two kernels: one of kNormVectors; not 0 only if aligned
  int blocks = 1;
  int threads = kNormThreads;  // workers
  AddRmsNormArgs args;         // without the fingerprint
};
// A forced choice is the all-reduce's; LL in one shot is also the one kernel's, where that takes the rows.
NormLaunch make_norm_launch(const AddRmsNorm& call, int size, int most_blocks, bool ll128,
                            const std::optional<ForcedChoice>& forced);
// Of two kernels, the first.
Call sum_of(const AddRmsNorm& call, const NormLaunch& launch) noexcept;

// "one_kernel", or the all-reduce's; lives for ever.
std::string_view name_of(const NormLaunch& launch) noexcept;
// "one_kernel@4x256", or "ll_two_shot@4x256, norm@64x512".
std::string to_string(const NormLaunch& launch);

}  // namespace tutti::cuda
