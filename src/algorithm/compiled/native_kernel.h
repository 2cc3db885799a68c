// A program's own kernel (include/tutti/plugin/kernel.cuh) as NVRTC gets it, and what it becomes.
//
// A kernel that reduces has an entry for each of the reductions that have code of their own, and one for all others, so
// that one compilation serves every call.
//
// Thread rule: pure functions, but for the folder of compiled kernels (KernelStore).
#pragma once

#include <string>
#include <vector>

#include "algorithm/user/algorithm_source.h"

namespace tutti {

// Entries of what is compiled, by cuda::Reducer; of a kernel that reduces nothing, one.
std::vector<std::string> native_entries(const KernelAlgorithm& kernel);

std::string native_text(const KernelAlgorithm& kernel);

// The cubin for `architecture`. `cache_folder` and `nvrtc` as of PlanCompiler. Throws Unsupported with the compiler's
// messages, or because there is no compiler.
std::string compile_native(const KernelAlgorithm& kernel, const std::string& architecture,
                           const std::string& cache_folder, const std::string& nvrtc);

}  // namespace tutti
