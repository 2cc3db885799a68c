#include "device/cuda/driver.h"

#include <cuda_runtime_api.h>

#include <string>

#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// 12.0: the oldest driver whose behaviour this code was written for.
template <class Function>
void find(Function& function, const char* name, unsigned version = 12000, bool needed = true) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == nullptr) {
    static_cast<void>(cudaGetLastError());
    if (!needed) return;
    throw_error(ErrorKind::kUnsupported, std::string("the CUDA driver offers no ") + name + " (" +
                                             (error != cudaSuccess ? cudaGetErrorString(error) : "too old") +
                                             "): install a driver for CUDA 12 or later");
  }
  function = reinterpret_cast<Function>(address);
}

Driver load() {
  Driver d{};
  find(d.get_error_string, "cuGetErrorString");
  find(d.device_get, "cuDeviceGet");
  find(d.device_get_attribute, "cuDeviceGetAttribute");
  find(d.mem_granularity, "cuMemGetAllocationGranularity");
  find(d.mem_create, "cuMemCreate");
  find(d.mem_release, "cuMemRelease");
  find(d.mem_address_reserve, "cuMemAddressReserve");
  find(d.mem_address_free, "cuMemAddressFree");
  find(d.mem_map, "cuMemMap");
  find(d.mem_unmap, "cuMemUnmap");
  find(d.mem_set_access, "cuMemSetAccess");
  find(d.mem_export, "cuMemExportToShareableHandle");
  find(d.mem_import, "cuMemImportFromShareableHandle");
  find(d.mem_get_address_range, "cuMemGetAddressRange");
  find(d.mem_retain_handle, "cuMemRetainAllocationHandle");
  find(d.mem_get_properties, "cuMemGetAllocationPropertiesFromHandle");
  find(d.pointer_get_attribute, "cuPointerGetAttribute");
  find(d.stream_write_value64, "cuStreamWriteValue64");
  find(d.module_load_data, "cuModuleLoadData");
  find(d.module_unload, "cuModuleUnload");
  find(d.module_get_function, "cuModuleGetFunction");
  find(d.func_get_attribute, "cuFuncGetAttribute");
  find(d.launch_kernel, "cuLaunchKernelEx");
  find(d.blocks_a_processor, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  find(d.most_clusters, "cuOccupancyMaxActiveClusters");
  find(d.func_load, "cuFuncLoad", 12040, false);
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver table = load();
  return table;
}

}  // namespace tutti::cuda
