#include "device/cuda/cuda_device.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"

namespace tutti::cuda {

void* CudaMemoryDevice::allocate(std::size_t bytes) {
  const RelaxedCapture relaxed;
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, bytes), "cudaMalloc");
  return data;
}

void CudaMemoryDevice::deallocate(void* data, std::size_t /*bytes*/) noexcept {
  try {
    const RelaxedCapture relaxed;
    static_cast<void>(cudaFree(data));
  } catch (const Error&) {
    // CUDA is gone, and the memory with it.
  }
}

void CudaMemoryDevice::copy(void* dst, const void* src, std::size_t bytes) const {
  if (bytes == 0) return;
  // On the legacy stream of the device that is read, behind what its owner has ordered before that one.
  int device = -1;
  for (const void* const end : {src, static_cast<const void*>(dst)}) {
    cudaPointerAttributes of{};
    check_cuda(cudaPointerGetAttributes(&of, end), "cudaPointerGetAttributes");
    if (of.type == cudaMemoryTypeDevice && device < 0) device = of.device;
  }
  if (device < 0) check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cudaStreamLegacy), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "cudaStreamSynchronize");  // cudaMemcpy does not in a device
}

}  // namespace tutti::cuda
