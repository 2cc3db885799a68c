#include "communicator/cuda/native_kernels.h"

#include "algorithm/compiled/native_kernel.h"

namespace tutti::cuda {

LoadedKernel::LoadedKernel(const KernelAlgorithm& kernel, int device, const std::string& cache_folder,
                           const std::string& nvrtc)
    : module_(std::make_unique<LoadedModule>(compile_native(kernel, architecture_of(device), cache_folder, nvrtc))) {
  for (const std::string& name : native_entries(kernel)) entries_.push_back(module_->function(name.c_str()));
}

}  // namespace tutti::cuda
