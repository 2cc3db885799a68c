// CUDA memory as a Device. The current device of the calling thread is the one that is meant.
#pragma once

#include "device/device.h"

namespace tutti::cuda {

class CudaMemoryDevice : public Device {
 public:
  std::string_view name() const noexcept override { return "cuda"; }
  void* allocate(std::size_t bytes) override;
  void deallocate(void* data, std::size_t bytes) noexcept override;
  bool supports(DataType dtype, ReduceOp op) const noexcept override;
  // At most 64 sources and 16 destinations (cuda_arithmetic.h).
  void reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count, DataType dtype,
              ReduceOp op, int divisor) const noexcept override;
  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override;
  void synchronize() override;
  CudaReport report() override;  // cuda_report.cc
};

}  // namespace tutti::cuda
