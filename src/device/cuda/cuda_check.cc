#include "device/cuda/cuda_check.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/interruption.h"
#include "device/cuda/driver.h"
#include "device/cuda/relaxed_capture.h"
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

cudaStream_t make_urgent_stream() {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
  return stream;
}

// No handler runs while CUDA waits. So where there may be one, CUDA is asked instead, and waits in the end: for nothing
// any more, or for what a handler that raised has ended. A child that a handler forked may touch nothing of CUDA.
void wait_for_stream(cudaStream_t stream) {
  constexpr std::chrono::microseconds kBusy(1000), kPause(50);
  const auto start = std::chrono::steady_clock::now();
  const RelaxedCapture relaxed;  // another thread may be capturing in the global mode, which this would end
  while (must_ask() && cudaStreamQuery(stream) == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // that it is not ready is no error
    if (!go_on_waiting()) break;
    if (std::chrono::steady_clock::now() - start > kBusy) std::this_thread::sleep_for(kPause);
  }
  if (waits_in_fork()) throw_if_interrupted("a wait for the GPU");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
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
