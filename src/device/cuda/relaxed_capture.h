// What CUDA forbids while another thread captures in the global mode, as torch does, allowed for this thread.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_check.h"

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

}  // namespace tutti::cuda
