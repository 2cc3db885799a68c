#include "device/cuda/memory_sharing.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/leftovers.h"
#include "device/cuda/relaxed_capture.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

CUdeviceptr as_pointer(std::uintptr_t address) { return static_cast<CUdeviceptr>(address); }

// The value of an attribute; `otherwise` where the driver has none for this memory.
template <class T>
T attribute(CUpointer_attribute name, std::uintptr_t address, T otherwise) {
  T value{};
  return driver().pointer_get_attribute(&value, name, as_pointer(address)) == CUDA_SUCCESS ? value : otherwise;
}

void set_access(int device, CUdeviceptr address, std::size_t bytes) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check_driver(driver().mem_set_access(address, bytes, &access, 1), "cuMemSetAccess");
}

// A handle that this code has a share of.
class Handle {
 public:
  explicit Handle(CUmemGenericAllocationHandle handle) : handle_(handle) {}
  ~Handle() { driver().mem_release(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  CUmemGenericAllocationHandle get() const noexcept { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_;
};

// Allocations of another process in one range of addresses.
class MappedAllocations {
 public:
  MappedAllocations(int device, std::span<const ForeignAllocation> allocations) {
    std::size_t bytes = 0;
    for (const ForeignAllocation& a : allocations) bytes += a.bytes;
    try {
      check_driver(driver().mem_address_reserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve");
      reserved_ = bytes;
      for (const ForeignAllocation& a : allocations) {
        const Handle handle(import(a));  // the mapping keeps the memory; the handle is not needed after it
        check_driver(driver().mem_map(address_ + mapped_, a.bytes, 0, handle.get(), 0), "cuMemMap");
        mapped_ += a.bytes;
      }
      set_access(device, address_, mapped_);
    } catch (...) {
      release();
      throw;
    }
  }
  ~MappedAllocations() { release(); }
  MappedAllocations(const MappedAllocations&) = delete;
  MappedAllocations& operator=(const MappedAllocations&) = delete;

  std::byte* data() const noexcept { return reinterpret_cast<std::byte*>(address_); }

 private:
  static CUmemGenericAllocationHandle import(const ForeignAllocation& a) {
    CUmemGenericAllocationHandle handle{};
    if (a.kind == ShareKind::kDescriptor) {
      check_driver(driver().mem_import(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(a.fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                   "cuMemImportFromShareableHandle");
      return handle;
    }
    CUmemFabricHandle fabric{};
    if (a.handle.size() != sizeof(fabric)) throw_error(ErrorKind::kInternal, "a fabric handle has another size");
    std::memcpy(&fabric, a.handle.data(), sizeof(fabric));
    check_driver(driver().mem_import(&handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC), "cuMemImportFromShareableHandle");
    return handle;
  }
  void release() noexcept {
    if (mapped_ > 0) driver().mem_unmap(address_, mapped_);
    if (reserved_ > 0) driver().mem_address_free(address_, reserved_);
  }

  CUdeviceptr address_ = 0;
  std::size_t reserved_ = 0;
  std::size_t mapped_ = 0;
};

std::shared_ptr<std::byte> open_ipc(int device, const ForeignAllocation& a) {
  cudaIpcMemHandle_t handle{};
  if (a.handle.size() != sizeof(handle)) throw_error(ErrorKind::kInternal, "a CUDA IPC handle has another size");
  std::memcpy(&handle, a.handle.data(), sizeof(handle));
  void* opened = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw_error(ErrorKind::kUnsupported,
                std::string("cudaIpcOpenMemHandle: ") + cudaGetErrorString(error) +
                    " (CUDA IPC needs processes in one IPC and PID name space: docker run --ipc=host --pid=host)");
  }
  return {static_cast<std::byte*>(opened), [device](std::byte* p) {
            leave(Leftover::kMapping, 0,
                  [device, p] { give_back_on(device, [p] { static_cast<void>(cudaIpcCloseMemHandle(p)); }); });
          }};
}

class CudaMemorySharing final : public MemorySharing {
 public:
  Allocation find(int device, std::uintptr_t address) const override {
    const DeviceGuard guard(device);
    check_cuda(cudaFree(nullptr), "cudaFree");
    const auto type = attribute<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, 0);
    const int owner = attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address, -1);
    CUdeviceptr base = 0;
    Allocation found;
    if (type != CU_MEMORYTYPE_DEVICE || (owner >= 0 && owner != device) ||
        driver().mem_get_address_range(&base, &found.bytes, as_pointer(address)) != CUDA_SUCCESS) {
      throw_error(ErrorKind::kInvalidArgument,
                  "the memory to register is not memory of CUDA device " + std::to_string(device));
    }
    found.base = static_cast<std::uintptr_t>(base);
    found.id = attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address, 0);
    return found;
  }

  SharedAllocation share(const Allocation& allocation) const override {
    SharedAllocation shared;
    if (attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, allocation.base, 0) != 0) {
      cudaIpcMemHandle_t handle{};
      check_cuda(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(allocation.base)), "cudaIpcGetMemHandle");
      shared.handle.assign(reinterpret_cast<const char*>(&handle), sizeof(handle));
      return shared;
    }
    CUmemGenericAllocationHandle raw{};
    if (driver().mem_retain_handle(&raw, reinterpret_cast<void*>(allocation.base)) != CUDA_SUCCESS) {
      throw_error(ErrorKind::kUnsupported, "memory of this kind (as of cudaMallocAsync) cannot be given to others");
    }
    const Handle handle(raw);
    CUmemAllocationProp prop{};
    check_driver(driver().mem_get_properties(&prop, handle.get()), "cuMemGetAllocationPropertiesFromHandle");
    if ((prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
      int fd = -1;
      check_driver(driver().mem_export(&fd, handle.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   "cuMemExportToShareableHandle");
      shared.kind = ShareKind::kDescriptor;
      shared.fd = UniqueFd(fd);
    } else if ((prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
      CUmemFabricHandle fabric{};
      check_driver(driver().mem_export(&fabric, handle.get(), CU_MEM_HANDLE_TYPE_FABRIC, 0),
                   "cuMemExportToShareableHandle");
      shared.kind = ShareKind::kFabric;
      shared.handle.assign(reinterpret_cast<const char*>(&fabric), sizeof(fabric));
    } else {
      throw_error(ErrorKind::kUnsupported,
                  "the memory was made without handles for other processes (with expandable segments of an older "
                  "PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)");
    }
    return shared;
  }

  std::shared_ptr<std::byte> open(int device, std::span<const ForeignAllocation> allocations) const override {
    const DeviceGuard guard(device);
    check_cuda(cudaFree(nullptr), "cudaFree");
    if (allocations.front().kind == ShareKind::kIpc) return open_ipc(device, allocations.front());
    auto mapped = std::make_shared<MappedAllocations>(device, allocations);
    return {mapped, mapped->data()};
  }

  void allow(int device, int owner, const Allocation& allocation) const override {
    const DeviceGuard guard(device);
    // The driver refuses a second thread that changes the access to the same memory meanwhile.
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    if (attribute<int>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, allocation.base, 0) == 0) {
      set_access(device, as_pointer(allocation.base), allocation.bytes);
      return;
    }
    const cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      static_cast<void>(cudaGetLastError());
    } else {
      check_cuda(error, "cudaDeviceEnablePeerAccess");
    }
  }
};

}  // namespace

const MemorySharing& cuda_memory_sharing() {
  static const CudaMemorySharing sharing;
  return sharing;
}

}  // namespace tutti::cuda
