// CUDA memory as a Device. The current device of the calling thread is the one that is meant.
#pragma once

#include "device/cuda/cuda_reporter.h"
#include "device/device.h"

namespace tutti::cuda {

class CudaMemoryDevice : public Device, public CudaReporter {
 public:
  std::string_view name() const noexcept override { return "cuda"; }
  void* allocate(std::size_t bytes) override;
  void deallocate(void* data, std::size_t bytes) noexcept override;
  void copy(void* dst, const void* src, std::size_t bytes) const override;
  CudaReport report() override;  // cuda_report.cc
};

}  // namespace tutti::cuda
