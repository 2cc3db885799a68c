// What the driver says of the devices of this machine.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/driver.h"
#include "device/cuda/links.h"
#include "tutti/cuda/report.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// What an attribute says; false where the driver does not know it.
bool has(int device, CUdevice_attribute attribute) {
  CUdevice handle{};
  int value = 0;
  return driver().device_get(&handle, device) == CUDA_SUCCESS &&
         driver().device_get_attribute(&value, attribute, handle) == CUDA_SUCCESS && value != 0;
}

// The runtime's own words do not tell a missing driver from an old one.
std::string problem_of(cudaError_t error) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = ::dlerror();
    return std::string("the driver's library cannot be loaded: ") + (text != nullptr ? text : "libcuda.so.1");
  }
  ::dlclose(library);
  return error == cudaSuccess ? "the driver finds no device" : cudaGetErrorString(error);
}

}  // namespace

CudaReport CudaMemoryDevice::report() {
  CudaReport report;
  static_cast<void>(cudaRuntimeGetVersion(&report.runtime_version));
  if (cudaDriverGetVersion(&report.driver_version) != cudaSuccess) report.driver_version = 0;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    report.problem = problem_of(error);
    return report;
  }
  try {
    driver();
  } catch (const Error& e) {
    report.problem = e.what();
    return report;
  }
  for (int i = 0; i < count; ++i) {
    CudaDeviceReport device;
    cudaDeviceProp prop{};
    const cudaError_t failed = cudaGetDeviceProperties(&prop, i);
    if (failed != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      device.name = cudaGetErrorString(failed);
    } else {
      device.name = prop.name;
      device.major = prop.major;
      device.minor = prop.minor;
      device.processors = prop.multiProcessorCount;
      device.memory_bytes = prop.totalGlobalMem;
    }
    device.virtual_memory = has(i, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
    device.posix_descriptors = has(i, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    device.ipc = prop.ipcEventSupported != 0;
    device.multicast = has(i, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
    for (int other = 0; other < count; ++other) device.reach.push_back(reach_of(i, other));
    report.devices.push_back(std::move(device));
  }
  return report;
}

}  // namespace tutti::cuda
