// Memory for PyTorch's pools (CUDAPluggableAllocator): made with descriptors, so that any process can map what is
// registered of it.
//
// C functions that libtutti_cuda.so exports. Ownership: the caller frees what it allocates; what a peer maps lives on
// until it is unmapped there. Thread rule: any thread. PyTorch allocates while it captures, hence the relaxed mode.
#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"
#include "device/cuda/shared_memory.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// What is allocated at present. One a process; never destroyed, since PyTorch frees its pools at exit.
struct Pool {
  std::mutex mutex;  // guards the members; a leaf
  std::map<void*, std::shared_ptr<SharedMemory>> memory;
  std::vector<std::shared_ptr<SharedMemory>> kept;  // that could not be freed
};
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

}  // namespace
}  // namespace tutti::cuda

// Null when there is none: PyTorch then frees what it has cached, tries again, and raises its own error.
extern "C" __attribute__((visibility("default"))) void* tutti_cuda_pool_malloc(ssize_t bytes, int device,
                                                                               cudaStream_t /*stream*/) noexcept {
  using namespace tutti::cuda;
  if (bytes <= 0) return nullptr;
  try {
    const RelaxedCapture relaxed;
    const DeviceGuard guard(device);
    check_cuda(cudaFree(nullptr), "cudaFree");  // makes the device's primary context
    std::shared_ptr<SharedMemory> memory = make_unset_device_memory(device, static_cast<std::size_t>(bytes));
    void* const data = memory->data();
    const std::lock_guard lock(pool().mutex);
    pool().memory.emplace(data, std::move(memory));
    return data;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// PyTorch gives memory back that work under way may still use, and counts on cudaFree to wait for it; unmapping does
// not. Where the device cannot be awaited (it has failed, or the process ends), the memory is kept.
extern "C" __attribute__((visibility("default"))) void tutti_cuda_pool_free(void* data, ssize_t /*bytes*/, int device,
                                                                            cudaStream_t /*stream*/) noexcept {
  using namespace tutti::cuda;
  std::shared_ptr<SharedMemory> memory;
  const auto take = [&] {
    const std::lock_guard lock(pool().mutex);
    const auto found = pool().memory.find(data);
    if (found == pool().memory.end()) return false;
    memory = std::move(found->second);
    pool().memory.erase(found);
    return true;
  };
  try {
    const RelaxedCapture relaxed;
    if (!take()) return;
    const DeviceGuard guard(device);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } catch (const std::exception&) {
    const std::lock_guard lock(pool().mutex);
    pool().kept.push_back(std::move(memory));
  }
}
