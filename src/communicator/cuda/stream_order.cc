#include "communicator/cuda/stream_order.h"

#include <mutex>
#include <vector>

#include "device/cuda/cuda_check.h"

namespace tutti::cuda {
namespace {

// What graphs have given up. One a process; never destroyed, since graphs may be destroyed at exit.
struct Retired {
  std::mutex mutex;  // guards resources; a leaf
  std::vector<std::shared_ptr<void>> resources;
};
Retired& retired() {
  static Retired* const instance = new Retired;
  return *instance;
}

// Called by CUDA when a graph and its executables are gone, on a thread that may not call CUDA.
void CUDART_CB retire(void* held) {
  auto* resource = static_cast<std::shared_ptr<void>*>(held);
  const std::lock_guard lock(retired().mutex);
  retired().resources.push_back(std::move(*resource));
  delete resource;
}

struct Capture {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
};

Capture capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture capture;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph, nullptr, nullptr, nullptr),
             "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive) return {};
  return capture;
}

}  // namespace

void release_retired() {
  std::vector<std::shared_ptr<void>> gone;
  const std::lock_guard lock(retired().mutex);
  gone.swap(retired().resources);
}

StreamOrder::~StreamOrder() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

void StreamOrder::before(cudaStream_t stream, const std::shared_ptr<void>& resource) {
  const Capture capture = capture_of(stream);
  if (used_ && stream != last_ && capture.id == last_capture_) {
    if (event_ == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    check_cuda(cudaEventRecord(event_, last_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  if (capture.id != 0 && capture.id != retained_by_) {
    auto held = std::make_unique<std::shared_ptr<void>>(resource);
    cudaUserObject_t object = nullptr;
    check_cuda(cudaUserObjectCreate(&object, held.get(), retire, 1, cudaUserObjectNoDestructorSync),
               "cudaUserObjectCreate");
    static_cast<void>(held.release());
    check_cuda(cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove),
               "cudaGraphRetainUserObject");
    retained_by_ = capture.id;
  }
  used_ = true;
  last_ = stream;
  last_capture_ = capture.id;
}

void StreamOrder::wait() noexcept {
  if (!used_ || last_capture_ != 0) return;
  static_cast<void>(cudaStreamSynchronize(last_));
}

}  // namespace tutti::cuda
