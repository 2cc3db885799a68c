#include "device/cuda/loaded_module.h"

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/leftovers.h"
#include "device/cuda/relaxed_capture.h"
#include "tutti/error.h"

namespace tutti::cuda {

std::string architecture_of(int device) {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return "sm_" + std::to_string(major) + std::to_string(minor);
}

LoadedModule::LoadedModule(const std::string& cubin) {
  check_cuda(cudaGetDevice(&index_), "cudaGetDevice");
  const RelaxedCapture relaxed;  // torch captures in the global mode
  check_driver(driver().module_load_data(&module_, cubin.data()), "cuModuleLoadData");
}

LoadedModule::~LoadedModule() {
  leave(Leftover::kOwn, 0, [index = index_, module = module_] {
    give_back_on(index, [module] { static_cast<void>(driver().module_unload(module)); });
  });
}

CUfunction LoadedModule::function(const char* name) const {
  const RelaxedCapture relaxed;
  const Driver& d = driver();
  CUfunction function = nullptr;
  check_driver(d.module_get_function(&function, module_, name), "cuModuleGetFunction");
  if (d.func_load != nullptr) check_driver(d.func_load(function), "cuFuncLoad");
  int registers = 0;
  check_driver(d.func_get_attribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function), "cuFuncGetAttribute");
  return function;
}

}  // namespace tutti::cuda
