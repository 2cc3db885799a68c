#include "torchcomms/stream_event.h"

#include <utility>

#include "aten/cuda_streams.h"
#include "aten/errors.h"
#include "aten/signals.h"
#include "base/registry.h"

namespace tutti::torchcomms {
namespace {

// Before the lock, which a thread of the parent's may have held at the fork.
void throw_if_forked() {
  if (!forked_child()) return;
  face::throw_backend_error(
      "tutti: wait: the copy belongs to the parent: Tutti is disabled in a forked child. Await it there");
}

}  // namespace

StreamEvent::StreamEvent(face::CudaEventsPtr events, c10::Stream stream, at::Tensor kept)
    : stream_(stream), kept_(std::move(kept)), event_(std::move(events), stream) {}

bool StreamEvent::isCompleted() {
  if (forked_child()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  return event_.query();
}

void StreamEvent::synchronize() {
  throw_if_forked();
  const std::lock_guard<std::mutex> lock(mutex_);
  event_.block(face::current_cuda_stream(stream_.device()));
}

bool StreamEvent::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (timeout.count() <= 0) return true;
  face::interruptible([&] {
    Deadline deadline = Deadline::after(timeout);
    if (face::over_in_time([this] { return isCompleted(); }, deadline, "wait")) return;
    face::throw_backend_error("tutti: wait: a window's data has not been written after " +
                              std::to_string(timeout.count()) + " ms; the copy goes on");
  });
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> StreamEvent::getFuture() {
  throw_if_forked();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (future_ == nullptr) future_ = face::enqueued_future(stream_, {kept_});
  return future_;
}

}  // namespace tutti::torchcomms
