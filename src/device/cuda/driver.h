// The CUDA driver's functions that the runtime does not offer, found at run time: nothing links libcuda.so, so the
// plug-in loads, and says what is missing, on a machine without a driver.
#pragma once

#include <cuda.h>

namespace tutti::cuda {

struct Driver {
  decltype(&cuGetErrorString) get_error_string;
  decltype(&cuDeviceGet) device_get;
  decltype(&cuDeviceGetAttribute) device_get_attribute;
  decltype(&cuMemGetAllocationGranularity) mem_granularity;
  decltype(&cuMemCreate) mem_create;
  decltype(&cuMemRelease) mem_release;
  decltype(&cuMemAddressReserve) mem_address_reserve;
  decltype(&cuMemAddressFree) mem_address_free;
  decltype(&cuMemMap) mem_map;
  decltype(&cuMemUnmap) mem_unmap;
  decltype(&cuMemSetAccess) mem_set_access;
  decltype(&cuMemExportToShareableHandle) mem_export;
  decltype(&cuMemImportFromShareableHandle) mem_import;
  decltype(&cuMemGetAddressRange) mem_get_address_range;
  decltype(&cuMemRetainAllocationHandle) mem_retain_handle;
  decltype(&cuMemGetAllocationPropertiesFromHandle) mem_get_properties;
  decltype(&cuPointerGetAttribute) pointer_get_attribute;
  decltype(&cuStreamWriteValue64) stream_write_value64;
  decltype(&cuModuleLoadData) module_load_data;
  decltype(&cuModuleUnload) module_unload;
  decltype(&cuModuleGetFunction) module_get_function;
  decltype(&cuFuncGetAttribute) func_get_attribute;
  decltype(&cuLaunchKernelEx) launch_kernel;
  decltype(&cuOccupancyMaxActiveBlocksPerMultiprocessor) blocks_a_processor;
  decltype(&cuOccupancyMaxActiveClusters) most_clusters;
  CUresult (*func_load)(CUfunction function);  // null before 12.4: functions load when their attributes are asked for
};

// Loaded at the first call. Throws Error(kUnsupported) if there is no driver, or one that is too old.
const Driver& driver();

}  // namespace tutti::cuda
