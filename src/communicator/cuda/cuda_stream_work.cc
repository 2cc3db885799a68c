#include "communicator/cuda/cuda_stream_work.h"

#include "base/registry.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"
#include "device/cuda/stream_capture.h"

namespace tutti::cuda {
namespace {

cudaStream_t cuda(DeviceStream stream) noexcept { return static_cast<cudaStream_t>(stream); }

}  // namespace

CudaStreamWork::CudaStreamWork(int device)
    : device_(device), events_(std::make_shared<Events>(device)), own_stream_(device) {
  check_cuda(cudaDeviceGetAttribute(&major_, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
}

CudaStreamWork::Events::~Events() {
  if (forked_child()) return;
  give_back_on(device, [this] {
    for (cudaEvent_t event : free) static_cast<void>(cudaEventDestroy(event));
  });
}

bool CudaStreamWork::is_capturing(DeviceStream stream) const {
  const DeviceGuard guard(device_);
  return cuda::is_capturing(cuda(stream));
}

StreamWork::Mark CudaStreamWork::mark(DeviceStream stream) {
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(events_->mutex);
    if (!events_->free.empty()) {
      event = events_->free.back();
      events_->free.pop_back();
    }
  }
  if (event == nullptr) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  Mark made(event, [events = events_](void* used) {
    if (forked_child()) return;
    const std::lock_guard lock(events->mutex);
    try {
      events->free.push_back(static_cast<cudaEvent_t>(used));
    } catch (const std::bad_alloc&) {
      static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(used)));
    }
  });
  check_cuda(cudaEventRecord(event, cuda(stream)), "cudaEventRecord");
  return made;
}

void CudaStreamWork::follow(const Mark& mark, DeviceStream stream) {
  const DeviceGuard guard(device_);
  check_cuda(cudaStreamWaitEvent(cuda(stream), static_cast<cudaEvent_t>(mark.get()), 0), "cudaStreamWaitEvent");
}

void CudaStreamWork::copy(std::byte* to, const std::byte* from, std::size_t bytes, DeviceStream stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda(stream)), "cudaMemcpyAsync");
}

std::shared_ptr<std::byte> CudaStreamWork::memory(std::size_t bytes, DeviceStream stream) {
  const DeviceGuard guard(device_);
  void* made = nullptr;
  check_cuda(cudaMallocAsync(&made, bytes, cuda(stream)), "cudaMallocAsync");
  return {static_cast<std::byte*>(made), [device = device_, stream](std::byte* used) {
            if (forked_child()) return;
            give_back_on(device, [&] { static_cast<void>(cudaFreeAsync(used, cuda(stream))); });
          }};
}

bool CudaStreamWork::reached(const Mark& mark) noexcept {
  bool passed = true;
  give_back_on(device_, [&] {
    passed = cudaEventQuery(static_cast<cudaEvent_t>(mark.get())) != cudaErrorNotReady;
    if (!passed) static_cast<void>(cudaGetLastError());  // that it is not ready is no error
  });
  return passed;
}

void CudaStreamWork::wait(DeviceStream stream) {
  const DeviceGuard guard(device_);  // handles of default streams mean those of the current device
  wait_for_stream(cuda(stream));
}

void CudaStreamWork::run(const std::function<void()>& work) {
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  work();
}

}  // namespace tutti::cuda
