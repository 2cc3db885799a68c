// Programs' own kernels on this rank's GPU: compiled and loaded when they are given, which all ranks do together.
//
// Ownership: a LoadedKernel owns its code; the table of plans keeps it, graphs that hold its kernels share that. Thread
// rule: const once made; the device is current when it is made and when it goes.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "algorithm/cuda/kernels.h"
#include "communicator/cuda/plan_table.h"
#include "device/cuda/loaded_module.h"

namespace tutti::cuda {

class LoadedKernel final : public LoadedCode {
 public:
  // For `device`, which is the current one; as of compile_native(). Throws Error(kUnsupported) with the compiler's
  // messages.
  LoadedKernel(const KernelAlgorithm& kernel, int device, const std::string& cache_folder, const std::string& nvrtc);

  // What runs a call of this type and operation.
  CUfunction entry(Reducer reducer) const noexcept {
    return entries_.size() == 1 ? entries_.front() : entries_[static_cast<std::size_t>(reducer)];
  }

 private:
  std::unique_ptr<LoadedModule> module_;
  std::vector<CUfunction> entries_;  // by Reducer, or one for all
};

}  // namespace tutti::cuda
