// Made with descriptors, so that any process can map what is registered of it. For PyTorch's pools
// (CUDAPluggableAllocator) libtutti_cuda.so exports two C functions: the caller frees what it allocates. PyTorch
// allocates while it captures, hence the relaxed mode.
#include "device/cuda/pool_memory.h"

#include <cuda_runtime_api.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>

#include "base/registry.h"
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
  std::multimap<void*, std::shared_ptr<SharedMemory>> kept;  // that could not be freed
};
Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

// Throws Error.
void* allocate(int device, std::size_t bytes) {
  const RelaxedCapture relaxed;
  const DeviceGuard guard(device);
  check_cuda(cudaFree(nullptr), "cudaFree");  // makes the device's primary context
  std::shared_ptr<SharedMemory> memory = make_unset_device_memory(device, bytes);
  void* const data = memory->data();
  const std::lock_guard lock(pool().mutex);
  pool().memory.emplace(data, std::move(memory));
  return data;
}

// Who gives memory back may have work under way that uses it, and counts on cudaFree to wait for that; unmapping does
// not. Where the device cannot be awaited (it has failed, or the process ends), the memory is kept.
void deallocate(void* data, int device) noexcept {
  if (forked_child()) return;  // before a lock that the parent may have held; the memory is the parent's
  decltype(Pool::memory)::node_type memory;
  {
    const std::lock_guard lock(pool().mutex);
    memory = pool().memory.extract(data);
  }
  if (memory.empty()) return;
  try {
    const RelaxedCapture relaxed;
    const DeviceGuard guard(device);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } catch (const std::exception&) {
    const std::lock_guard lock(pool().mutex);
    pool().kept.insert(std::move(memory));
  }
}

}  // namespace

std::shared_ptr<std::byte> make_pool_memory(int device, std::size_t bytes) {
  return {static_cast<std::byte*>(allocate(device, bytes)), [device](std::byte* data) { deallocate(data, device); }};
}

}  // namespace tutti::cuda

// Null when there is none: PyTorch then frees what it has cached, tries again, and raises its own error.
extern "C" __attribute__((visibility("default"))) void* tutti_cuda_pool_malloc(ssize_t bytes, int device,
                                                                               cudaStream_t /*stream*/) noexcept {
  if (bytes <= 0) return nullptr;
  try {
    return tutti::cuda::allocate(device, static_cast<std::size_t>(bytes));
  } catch (const std::exception&) {
    return nullptr;
  }
}

extern "C" __attribute__((visibility("default"))) void tutti_cuda_pool_free(void* data, ssize_t /*bytes*/, int device,
                                                                            cudaStream_t /*stream*/) noexcept {
  tutti::cuda::deallocate(data, device);
}
