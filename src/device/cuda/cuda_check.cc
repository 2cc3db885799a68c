#include "device/cuda/cuda_check.h"

#include <array>
#include <atomic>
#include <cstddef>
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

namespace {

// The context that the runtime uses on a device. Held for good: the runtime's own lives as long.
CUcontext primary_context(int device) {
  CUdevice handle = 0;
  check_driver(driver().device_get(&handle, device), "cuDeviceGet");
  CUcontext context = nullptr;
  check_driver(driver().primary_context_retain(&context, handle), "cuDevicePrimaryCtxRetain");
  return context;
}

// Kept, so that a guard costs no look at the driver's table.
CUcontext kept_context(int device) {
  static std::array<std::atomic<CUcontext>, 64> kept{};
  const auto index = static_cast<std::size_t>(device);
  if (device < 0 || index >= kept.size()) return primary_context(device);
  // relaxed, both: the driver's handle, which is the same whoever asks; what it stands for is the driver's to publish.
  CUcontext context = kept[index].load(std::memory_order_relaxed);
  if (context == nullptr) kept[index].store(context = primary_context(device), std::memory_order_relaxed);
  return context;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  int current = -1;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current == device) return;
  check_driver(driver().context_push(kept_context(device)), "cuCtxPushCurrent");
  pushed_ = true;
}

DeviceGuard::~DeviceGuard() {
  CUcontext left = nullptr;
  if (pushed_) static_cast<void>(driver().context_pop(&left));
}

}  // namespace tutti::cuda
