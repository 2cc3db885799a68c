// Errors of CUDA as Errors of Tutti.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tutti::cuda {

// Throws Error (kExhausted for want of memory, else kInternal) that names the call and CUDA's reason.
void check_cuda(cudaError_t error, const char* call);
void check_driver(CUresult result, const char* call);

// Waits on the host for what `stream` of the current device holds; the program's signals are handled meanwhile
// (base/interruption.h). Throws Error.
void wait_for_stream(cudaStream_t stream);

// A stream of the current device that waits for no other stream, and has the highest priority: so hardware queues that
// it shares with no stream of the default one. Throws Error.
cudaStream_t make_urgent_stream();

// Makes `device` current on this thread as long as it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;
};

}  // namespace tutti::cuda
