#include "device/cuda/cuda_device.h"

#include "device/cuda/cuda_check.h"

namespace tutti::cuda {

void* CudaMemoryDevice::allocate(std::size_t bytes) {
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}

void CudaMemoryDevice::deallocate(void* data, std::size_t /*bytes*/) noexcept { static_cast<void>(cudaFree(data)); }

void CudaMemoryDevice::copy(void* dst, const void* src, std::size_t bytes) const noexcept {
  static_cast<void>(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault));
}

}  // namespace tutti::cuda
