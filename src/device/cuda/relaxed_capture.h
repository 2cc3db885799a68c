// What CUDA forbids while another thread captures in the global mode, as torch does, allowed for this thread.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_check.h"
#include "tutti/error.h"

namespace tutti::cuda {

// As long as it lives. Throws Error(kInternal) where CUDA refuses.
class RelaxedCapture {
 public:
  RelaxedCapture() { check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then what it was before
};

// The same for as long as this thread lives.
inline void relax_captures_of_thread() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
}

// Runs `give_back`, which destroys what belongs to `device`, on whatever thread lets go of it: with that device
// current, or the thread's own one might get a context, which takes half a gigabyte, and as RelaxedCapture.
template <class GiveBack>
void give_back_on(int device, const GiveBack& give_back) noexcept {
  try {
    const DeviceGuard guard(device);
    const RelaxedCapture relaxed;
    give_back();
  } catch (const Error&) {
    // CUDA is gone, and all that it had.
  }
}

}  // namespace tutti::cuda
