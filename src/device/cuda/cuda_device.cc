#include "device/cuda/cuda_device.h"

#include "device/cpu/kernels.h"
#include "device/cuda/cuda_arithmetic.h"
#include "device/cuda/cuda_check.h"

namespace tutti::cuda {

void* CudaMemoryDevice::allocate(std::size_t bytes) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}

void CudaMemoryDevice::deallocate(void* data, std::size_t /*bytes*/) noexcept { static_cast<void>(cudaFree(data)); }

bool CudaMemoryDevice::supports(DataType dtype, ReduceOp op) const noexcept { return cpu::supports(dtype, op); }

void CudaMemoryDevice::reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
                              DataType dtype, ReduceOp op, int divisor) const noexcept {
  launch_reduce(dsts, n_dsts, srcs, n_srcs, count, dtype, op, divisor);
}

void CudaMemoryDevice::copy(void* dst, const void* src, std::size_t bytes) const noexcept {
  static_cast<void>(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault));
}

void CudaMemoryDevice::synchronize() { check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

}  // namespace tutti::cuda
