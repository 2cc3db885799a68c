#include "communicator/cuda/stream_order.h"

#include <algorithm>
#include <exception>
#include <list>
#include <mutex>

#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// What graphs hold, or have given up: of one each, so that to give it up takes no memory.
using Resources = std::list<std::shared_ptr<const void>>;

// What graphs have given up. One a process; never destroyed, since graphs may be destroyed at exit.
struct Retired {
  std::mutex mutex;  // guards resources; a leaf
  Resources resources;
};
Retired& retired() {
  static Retired* const instance = new Retired;
  return *instance;
}

// Called by CUDA when a graph and its executables are gone, on a thread that may not call CUDA.
void CUDART_CB retire(void* held) {
  const std::unique_ptr<Resources> one(static_cast<Resources*>(held));
  const std::lock_guard lock(retired().mutex);
  retired().resources.splice(retired().resources.end(), *one);
}

// Also where CUDA does not tell: of the legacy stream while another one is captured.
bool may_be_captured(cudaStream_t stream) noexcept {
  try {
    return is_capturing(stream);
  } catch (const std::exception&) {
    return true;
  }
}

// Another thread may be capturing in the global mode, which forbids this one to ask and to wait.
template <class Act>
void beside_captures(const Act& act) noexcept {
  try {
    const RelaxedCapture relaxed;
    act();
  } catch (const std::exception&) {
    // CUDA is gone, and all that ran there.
  }
}

// For all that runs on the current device, where a stream of it is captured: to wait for that stream, or for the device
// by its name, would end the capture. cudaFree waits as well, and where the device has no memory left, cudaFreeHost.
void wait_for_device() noexcept {
  void* memory = nullptr;
  if (cudaMalloc(&memory, 1) == cudaSuccess) {
    static_cast<void>(cudaFree(memory));
  } else if (cudaMallocHost(&memory, 1) == cudaSuccess) {
    static_cast<void>(cudaFreeHost(memory));
  }
  static_cast<void>(cudaGetLastError());
}

}  // namespace

void release_retired() {
  Resources gone;
  const std::lock_guard lock(retired().mutex);
  gone.swap(retired().resources);
}

StreamOrder::~StreamOrder() {
  if (eager_event_ == nullptr && captured_event_ == nullptr) return;
  give_back_on(device_, [this] {
    for (cudaEvent_t event : {eager_event_, captured_event_}) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
  });
}

void StreamOrder::record(cudaEvent_t& event, cudaStream_t stream) {
  if (event == nullptr) {
    check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  check_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
}

// An event on a stream that is captured belongs to the graph, and so would what waits for it: it would not run now.
void StreamOrder::refuse_captured(cudaStream_t last) {
  if (!is_capturing(last)) return;
  throw_error(ErrorKind::kInvalidArgument,
              "a call that is not captured follows one on another stream, which is being captured now: end the capture "
              "first, or make the call on a stream of the capture");
}

bool StreamOrder::before(cudaStream_t stream, const std::shared_ptr<const void>& resource) {
  const StreamCapture capture = capture_of(stream);
  const bool eager = capture.id == 0;
  Launch& last = eager ? eager_ : captured_;
  unsigned long long number = 0;
  // Not while it is being captured, when CUDA does not tell; nor is it destroyed then.
  if (eager) check_cuda(cudaStreamGetId(stream, &number), "cudaStreamGetId");
  const bool changed = eager ? number != last.number : stream != last.stream;
  if (last.made && changed && capture.id == last.capture) {
    cudaEvent_t& event = eager ? eager_event_ : captured_event_;
    if (lasting_ && eager) refuse_captured(last.stream);
    if (lasting_ || !eager) record(event, last.stream);
    // Without an event, no launch has succeeded.
    if (event != nullptr) check_cuda(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
  }
  if (!eager) {
    bind(capture, stream);
  } else if (replays_ != nullptr) {
    check_cuda(cudaStreamWaitEvent(stream, replays_->event, 0), "cudaStreamWaitEvent");
  }
  retain_in(capture, resource);
  last = {true, stream, number, capture.id};
  return !eager;
}

void StreamOrder::bind(const StreamCapture& capture, cudaStream_t stream) {
  if (replays_ == nullptr) replays_ = std::make_shared<const SharedEvent>();
  if (capture.id == bound_) return;
  retain_in(capture, replays_);
  check_cuda(cudaStreamWaitEvent(stream, replays_->event, cudaEventWaitExternal), "cudaStreamWaitEvent");
  bound_ = capture.id;
  recording_ = nullptr;
}

void StreamOrder::after(cudaStream_t stream, bool captured) {
  if (!captured) {
    if (!lasting_) record(eager_event_, stream);
    if (replays_ != nullptr) check_cuda(cudaEventRecord(replays_->event, stream), "cudaEventRecord");
    return;
  }
  StreamCapture capture = capture_of(stream);
  if (recording_ == nullptr) {
    check_cuda(cudaGraphAddEventRecordNode(&recording_, capture.graph, capture.last.data(), capture.last.size(),
                                           replays_->event),
               "cudaGraphAddEventRecordNode");
  } else {
    std::vector<cudaGraphNode_t> to(recorded_.size(), recording_);
    check_cuda(cudaGraphRemoveDependencies(capture.graph, recorded_.data(), to.data(), nullptr, to.size()),
               "cudaGraphRemoveDependencies");
    to.assign(capture.last.size(), recording_);
    check_cuda(cudaGraphAddDependencies(capture.graph, capture.last.data(), to.data(), nullptr, to.size()),
               "cudaGraphAddDependencies");
  }
  recorded_ = std::move(capture.last);
}

StreamOrder::SharedEvent::SharedEvent() {
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}
StreamOrder::SharedEvent::~SharedEvent() {
  give_back_on(device, [this] { static_cast<void>(cudaEventDestroy(event)); });
}

void StreamOrder::retain(cudaStream_t stream, const std::shared_ptr<const void>& resource) {
  retain_in(capture_of(stream), resource);
}

void StreamOrder::retain_in(const StreamCapture& capture, const std::shared_ptr<const void>& resource) {
  if (capture.id == 0) return;
  if (capture.id != retained_by_) {
    retained_by_ = capture.id;
    retained_.clear();
  }
  if (std::find(retained_.begin(), retained_.end(), resource.get()) != retained_.end()) return;
  auto held = std::make_unique<Resources>(1, resource);
  cudaUserObject_t object = nullptr;
  check_cuda(cudaUserObjectCreate(&object, held.get(), retire, 1, cudaUserObjectNoDestructorSync),
             "cudaUserObjectCreate");
  static_cast<void>(held.release());
  check_cuda(cudaGraphRetainUserObject(capture.graph, object, 1, cudaGraphUserObjectMove), "cudaGraphRetainUserObject");
  retained_.push_back(resource.get());
}

bool StreamOrder::idle() const noexcept {
  if (has_captured()) return false;
  if (!eager_.made) return true;
  cudaError_t state = cudaErrorNotReady;
  // As in wait(). Of a stream that is captured nothing may be asked.
  beside_captures([&] {
    if (!lasting_) {
      if (eager_event_ != nullptr) state = cudaEventQuery(eager_event_);
    } else if (!may_be_captured(eager_.stream)) {
      state = cudaStreamQuery(eager_.stream);
    }
  });
  if (state != cudaSuccess) static_cast<void>(cudaGetLastError());
  return state == cudaSuccess;
}

void StreamOrder::wait() noexcept {
  if (!eager_.made) return;
  beside_captures([&] {
    if (!lasting_) {
      if (eager_event_ != nullptr) static_cast<void>(cudaEventSynchronize(eager_event_));
    } else if (!may_be_captured(eager_.stream)) {
      static_cast<void>(cudaStreamSynchronize(eager_.stream));
    } else {
      wait_for_device();
    }
  });
}

}  // namespace tutti::cuda
