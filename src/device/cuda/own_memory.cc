#include "device/cuda/own_memory.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <new>

#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

struct DevicePool {
  cudaMemPool_t pool = nullptr;
  // Holds allocations and frees only, and has the highest priority, whose streams have hardware queues of their own: so
  // that it never waits for a peer.
  cudaStream_t stream = nullptr;
};

// One a process; never destroyed, since groups may end at exit.
struct OwnMemory {
  std::mutex mutex;  // guards the members
  std::map<int, DevicePool> pools;
  std::multimap<std::size_t, void*> pinned;  // that nobody uses, by size
};
OwnMemory& all() {
  static OwnMemory* const instance = new OwnMemory;
  return *instance;
}

// The current device is `device`.
DevicePool pool_of(int device) {
  const std::lock_guard lock(all().mutex);
  DevicePool& made = all().pools[device];
  if (made.pool == nullptr) {
    cudaMemPoolProps props{};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    props.location.id = device;
    check_cuda(cudaMemPoolCreate(&made.pool, &props), "cudaMemPoolCreate");
  }
  if (made.stream == nullptr) made.stream = make_urgent_stream();
  return made;
}

void give_back(int device, void* data) noexcept {
  give_back_on(device, [&] { check_cuda(cudaFreeAsync(data, pool_of(device).stream), "cudaFreeAsync"); });
}

void keep_pinned(std::size_t bytes, void* data) noexcept {
  const std::lock_guard lock(all().mutex);
  try {
    all().pinned.emplace(bytes, data);
  } catch (const std::bad_alloc&) {  // it stays pinned to the end of the process
  }
}

}  // namespace

std::shared_ptr<std::byte> make_own_memory(int device, std::size_t bytes) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  check_cuda(cudaFree(nullptr), "cudaFree");  // makes the device's primary context
  const DevicePool from = pool_of(device);
  void* data = nullptr;
  check_cuda(cudaMallocFromPoolAsync(&data, bytes, from.pool, from.stream), "cudaMallocFromPoolAsync");
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(data), [device](std::byte* p) { give_back(device, p); });
  check_cuda(cudaStreamSynchronize(from.stream), "cudaStreamSynchronize");  // other streams may use it from here on
  return memory;
}

std::shared_ptr<std::byte> make_own_pinned(std::size_t bytes) {
  void* data = nullptr;
  {
    const std::lock_guard lock(all().mutex);
    const auto found = all().pinned.find(bytes);
    if (found != all().pinned.end()) {
      data = found->second;
      all().pinned.erase(found);
    }
  }
  if (data == nullptr) {
    const RelaxedCapture relaxed;
    check_cuda(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
  }
  return {static_cast<std::byte*>(data), [bytes](std::byte* p) { keep_pinned(bytes, p); }};
}

}  // namespace tutti::cuda
