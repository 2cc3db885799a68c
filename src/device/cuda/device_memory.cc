// SharedMemory on a device: one physical allocation, one range of addresses.
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/rounding.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/shared_memory.h"

namespace tutti::cuda {
namespace {

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

std::size_t whole_granules(int device, std::size_t bytes) {
  const CUmemAllocationProp prop = properties(device);
  std::size_t granule = 0;
  check_driver(driver().mem_granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "cuMemGetAllocationGranularity");
  return round_up(bytes, granule);
}

class DeviceMemory final : public SharedMemory {
 public:
  // Takes the handle.
  DeviceMemory(CUmemGenericAllocationHandle handle, int device, std::size_t bytes) : handle_(handle), bytes_(bytes) {
    try {
      check_driver(driver().mem_address_reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
      check_driver(driver().mem_map(address_, bytes_, 0, handle_, 0), "cuMemMap");
      mapped_ = true;
      set_access(device);
    } catch (...) {
      release();
      throw;
    }
  }
  ~DeviceMemory() override { release(); }

  std::byte* data() const noexcept override { return reinterpret_cast<std::byte*>(address_); }
  std::size_t bytes() const noexcept override { return bytes_; }
  UniqueFd export_fd() const override {
    int fd = -1;
    check_driver(driver().mem_export(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                 "cuMemExportToShareableHandle");
    return UniqueFd(fd);
  }
  void allow(int device) override { set_access(device); }

 private:
  // Once a device: ranks of one process that share a device ask for the same, perhaps at once, and the driver refuses
  // the second while the first is under way.
  void set_access(int device) {
    const std::lock_guard lock(mutex_);
    if (std::find(allowed_.begin(), allowed_.end(), device) != allowed_.end()) return;
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    check_driver(driver().mem_set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
    allowed_.push_back(device);
  }
  void release() noexcept {
    if (mapped_) driver().mem_unmap(address_, bytes_);
    if (address_ != 0) driver().mem_address_free(address_, bytes_);
    driver().mem_release(handle_);
  }

  CUmemGenericAllocationHandle handle_;
  std::size_t bytes_;
  CUdeviceptr address_ = 0;
  bool mapped_ = false;
  std::mutex mutex_;          // guards allowed_, and that one thread sets access at a time
  std::vector<int> allowed_;  // devices that have access
};

}  // namespace

std::shared_ptr<SharedMemory> make_unset_device_memory(int device, std::size_t bytes) {
  const std::size_t whole = whole_granules(device, bytes);
  const CUmemAllocationProp prop = properties(device);
  CUmemGenericAllocationHandle handle{};
  check_driver(driver().mem_create(&handle, whole, &prop, 0), "cuMemCreate");
  return std::make_shared<DeviceMemory>(handle, device, whole);
}

std::shared_ptr<SharedMemory> make_device_memory(int device, std::size_t bytes, cudaStream_t stream) {
  const DeviceGuard guard(device);
  check_cuda(cudaFree(nullptr), "cudaFree");  // makes the device's primary context
  auto memory = make_unset_device_memory(device, bytes);
  check_cuda(cudaMemsetAsync(memory->data(), 0, memory->bytes(), stream), "cudaMemsetAsync");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return memory;
}

std::shared_ptr<SharedMemory> open_device_memory(int device, int fd, std::size_t bytes) {
  const DeviceGuard guard(device);
  check_cuda(cudaFree(nullptr), "cudaFree");
  CUmemGenericAllocationHandle handle{};
  check_driver(driver().mem_import(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "cuMemImportFromShareableHandle");
  return std::make_shared<DeviceMemory>(handle, device, bytes);
}

}  // namespace tutti::cuda
