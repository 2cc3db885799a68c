// Code that was compiled at run time, on the current device. All of it is loaded at once: CUDA would load a kernel at
// its first launch, beside kernels that wait.
//
// Thread rule: one thread at a time; the device is current when it is made. Unloaded as leftovers.h says.
#pragma once

#include <cuda.h>

#include <string>

namespace tutti::cuda {

// "sm_90"
std::string architecture_of(int device);

class LoadedModule {
 public:
  // Throws what the driver says.
  explicit LoadedModule(const std::string& cubin);
  ~LoadedModule();
  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;

  CUfunction function(const char* name) const;

 private:
  int index_ = 0;  // of the device
  CUmodule module_ = nullptr;
};

}  // namespace tutti::cuda
