// Device memory that Tutti has not made, of each kind that callers bring.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "tutti/cuda/communicator.h"

namespace tutti::cuda::test {

enum class MemoryKind { kMalloc, kSegments, kPool };
inline const char* name_of(MemoryKind kind) {
  return kind == MemoryKind::kMalloc ? "cudaMalloc" : kind == MemoryKind::kSegments ? "several handles" : "pool";
}

template <class Function>
Function* driver_function(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found) != cudaSuccess ||
      address == nullptr) {
    throw std::runtime_error(std::string("the driver has no ") + name);
  }
  return reinterpret_cast<Function*>(address);
}

inline void check_result(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(std::string(call) + ": error " + std::to_string(result));
}
#define TUTTI_DRIVER(function, ...) \
  check_result(driver_function<std::remove_pointer_t<decltype(&function)>>(#function)(__VA_ARGS__), #function)

// Several physical allocations, mapped one after another, as PyTorch's expandable segments are.
class Segments {
 public:
  explicit Segments(int device, std::size_t count) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    bytes_ = count * kSegment;
    TUTTI_DRIVER(cuMemAddressReserve, &address_, bytes_, 0, 0, 0);
    for (std::size_t i = 0; i < count; ++i) {
      CUmemGenericAllocationHandle handle{};
      TUTTI_DRIVER(cuMemCreate, &handle, kSegment, &prop, 0);
      TUTTI_DRIVER(cuMemMap, address_ + i * kSegment, kSegment, 0, handle, 0);
      TUTTI_DRIVER(cuMemRelease, handle);
    }
    CUmemAccessDesc access{};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    TUTTI_DRIVER(cuMemSetAccess, address_, bytes_, &access, 1);
  }
  ~Segments() {
    driver_function<decltype(cuMemUnmap)>("cuMemUnmap")(address_, bytes_);
    driver_function<decltype(cuMemAddressFree)>("cuMemAddressFree")(address_, bytes_);
  }
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;
  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }

 private:
  static constexpr std::size_t kSegment = std::size_t{2} << 20;
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
};

// `megabytes` of device memory, an even number.
inline std::shared_ptr<std::byte> make_memory(MemoryKind kind, int device, std::size_t megabytes) {
  const std::size_t bytes = megabytes << 20;
  if (kind == MemoryKind::kSegments) {
    auto segments = std::make_shared<Segments>(device, megabytes / 2);
    return {segments, segments->data()};
  }
  if (kind == MemoryKind::kPool) {
    void* library = ::dlopen(CudaCommunicator::library().c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto allocate =
        reinterpret_cast<void* (*)(ssize_t, int, cudaStream_t)>(::dlsym(library, "tutti_cuda_pool_malloc"));
    const auto release =
        reinterpret_cast<void (*)(void*, ssize_t, int, cudaStream_t)>(::dlsym(library, "tutti_cuda_pool_free"));
    if (allocate == nullptr || release == nullptr) throw std::runtime_error("libtutti_cuda.so exports no pool");
    void* data = allocate(static_cast<ssize_t>(bytes), device, nullptr);
    if (data == nullptr) throw std::runtime_error("tutti_cuda_pool_malloc gives nothing");
    return {static_cast<std::byte*>(data),
            [=](std::byte* p) { release(p, static_cast<ssize_t>(bytes), device, nullptr); }};
  }
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess) throw std::runtime_error("cudaMalloc");
  return {static_cast<std::byte*>(data), [](std::byte* p) { static_cast<void>(cudaFree(p)); }};
}

}  // namespace tutti::cuda::test
