#include "torchcomms/stream_event.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <thread>
#include <utility>

#include "aten/cuda_streams.h"
#include "aten/signals.h"

namespace tutti::torchcomms {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);

}  // namespace

StreamEvent::StreamEvent(face::CudaEventsPtr events, c10::Stream stream, at::Tensor kept)
    : stream_(stream), kept_(std::move(kept)), event_(std::move(events), stream) {}

bool StreamEvent::isCompleted() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return event_.query();
}

void StreamEvent::synchronize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  event_.block(face::current_cuda_stream(stream_.device()));
}

bool StreamEvent::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (timeout.count() <= 0) return true;
  face::interruptible([&] {
    const auto start = std::chrono::steady_clock::now();
    while (!isCompleted()) {
      throw_if_interrupted("wait");
      if (std::chrono::steady_clock::now() - start >= timeout) {
        C10_THROW_ERROR(DistBackendError, "tutti: wait: a window's data has not been written after " +
                                              std::to_string(timeout.count()) + " ms; the copy goes on");
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  });
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> StreamEvent::getFuture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (future_ != nullptr) return future_;
  // Complete when enqueued, as those of calls on CUDA tensors: who uses its value waits for the stream that is current
  // here.
  const c10::StreamGuard on_stream(stream_);
  future_ =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector<c10::Device>{stream_.device()});
  future_->markCompleted(c10::IValue(std::vector<at::Tensor>{kept_}));
  return future_;
}

}  // namespace tutti::torchcomms
