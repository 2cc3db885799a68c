#include "communicator/cuda/stream_order.h"

#include <algorithm>
#include <mutex>

#include "device/cuda/cuda_check.h"

namespace tutti::cuda {
namespace {

// What graphs have given up. One a process; never destroyed, since graphs may be destroyed at exit.
struct Retired {
  std::mutex mutex;  // guards resources; a leaf
  std::vector<std::shared_ptr<const void>> resources;
};
Retired& retired() {
  static Retired* const instance = new Retired;
  return *instance;
}

// Called by CUDA when a graph and its executables are gone, on a thread that may not call CUDA.
void CUDART_CB retire(void* held) {
  auto* resource = static_cast<std::shared_ptr<const void>*>(held);
  const std::lock_guard lock(retired().mutex);
  retired().resources.push_back(std::move(*resource));
  delete resource;
}

}  // namespace

void release_retired() {
  std::vector<std::shared_ptr<const void>> gone;
  const std::lock_guard lock(retired().mutex);
  gone.swap(retired().resources);
}

StreamOrder::~StreamOrder() {
  if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
}

StreamOrder::Capture StreamOrder::capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture capture;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph, nullptr, nullptr, nullptr),
             "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive) return {};
  return capture;
}

bool StreamOrder::before(cudaStream_t stream, const std::shared_ptr<const void>& resource) {
  const Capture capture = capture_of(stream);
  Launch& last = capture.id == 0 ? eager_ : captured_;
  if (last.made && stream != last.stream && capture.id == last.capture) {
    if (event_ == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    check_cuda(cudaEventRecord(event_, last.stream), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }
  retain_in(capture, resource);
  last = {true, stream, capture.id};
  return capture.id != 0;
}

void StreamOrder::retain(cudaStream_t stream, const std::shared_ptr<const void>& resource) {
  retain_in(capture_of(stream), resource);
}

void StreamOrder::retain_in(const Capture& capture, const std::shared_ptr<const void>& resource) {
  if (capture.id == 0) return;
  if (capture.id != retained_by_) {
    retained_by_ = capture.id;
    retained_.clear();
  }
  if (std::find(retained_.begin(), retained_.end(), resource.get()) != retained_.end()) return;
  auto held = std::make_unique<std::shared_ptr<const void>>(resource);
  cudaUserObject_t object = nullptr;
  check_cuda(cudaUserObjectCreate(&object, held.get(), retire, 1, cudaUserObjectNoDestructorSync),
             "cudaUserObjectCreate");
  static_cast<void>(held.release());
  check_cuda(cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove), "cudaGraphRetainUserObject");
  retained_.push_back(resource.get());
}

void StreamOrder::wait() noexcept {
  if (eager_.made) static_cast<void>(cudaStreamSynchronize(eager_.stream));
}

}  // namespace tutti::cuda
