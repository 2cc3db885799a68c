// The one thing that the CUDA driver is asked for directly: a copy on a device, in a stream. Nothing here links CUDA.
//
// Thread rule: any thread.
#pragma once

#include <cstddef>

#include "device/nccl/abi.h"

namespace tutti::nccl {

class Driver {
 public:
  // Enqueues a copy on `device`. Throws Error.
  void copy(int device, void* to, const void* from, std::size_t bytes, cudaStream_t stream) const;

 private:
  friend const Driver* driver();
  int (*get_device_)(int*, int) = nullptr;
  int (*retain_context_)(void**, int) = nullptr;
  int (*push_context_)(void*) = nullptr;
  int (*pop_context_)(void**) = nullptr;
  int (*copy_)(unsigned long long, unsigned long long, std::size_t, cudaStream_t) = nullptr;
};

// Null where there is no driver.
const Driver* driver();

}  // namespace tutti::nccl
