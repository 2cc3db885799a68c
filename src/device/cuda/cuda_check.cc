#include "device/cuda/cuda_check.h"

#include <string>

#include "device/cuda/driver.h"
#include "tutti/error.h"

namespace tutti::cuda {

void check_cuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // not sticky: the caller's next check must not find it
  const ErrorKind kind = error == cudaErrorMemoryAllocation ? ErrorKind::kExhausted : ErrorKind::kInternal;
  throw_error(kind, std::string(call) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

void check_driver(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().get_error_string(result, &text);
  const ErrorKind kind = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorKind::kExhausted : ErrorKind::kInternal;
  throw_error(kind, std::string(call) + ": " + (text != nullptr ? text : "unknown error of the CUDA driver"));
}

DeviceGuard::DeviceGuard(int device) {
  int current = -1;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
}

}  // namespace tutti::cuda
