#include "torch/deferred_cuda_work.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <string>
#include <utility>

#include "aten/errors.h"
#include "aten/signals.h"

namespace tutti::face {

DeferredCudaWork::DeferredCudaWork(int rank, int peer, c10d::OpType op, c10::Stream stream, const at::Tensor& tensor)
    : c10d::Work(rank, op), peer_(peer), stream_(stream), tensor_(tensor) {}

void DeferredCudaWork::settle(C10dWorkPtr work, const std::exception_ptr& error) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
    error_ = error;
  }
  cv_.notify_all();
}

std::pair<C10dWorkPtr, std::exception_ptr> DeferredCudaWork::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {work_, error_};
}

bool DeferredCudaWork::isCompleted() {
  const auto [work, error] = state();
  return error != nullptr || (work != nullptr && work->isCompleted());
}

bool DeferredCudaWork::isSuccess() const {
  const auto [work, error] = state();
  return error == nullptr && (work == nullptr || work->isSuccess());  // as CudaWork: nothing has gone wrong so far
}

std::exception_ptr DeferredCudaWork::exception() const {
  const auto [work, error] = state();
  return work != nullptr ? work->exception() : error;
}

// What a handler of a signal raises ends the wait; the message goes on.
void DeferredCudaWork::wait_until_settled(Deadline& deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto settled = [this] { return work_ != nullptr || error_ != nullptr; };
  for (;;) {
    const std::int64_t slice_ns = std::min(deadline.remaining_ns(), kAskEveryMs * 1'000'000);
    if (cv_.wait_for(lock, std::chrono::nanoseconds(std::max<std::int64_t>(0, slice_ns)), settled)) return;
    if (deadline.expired()) {
      throw_backend_error("wait: rank " + std::to_string(peer_) +
                          " has not come for the first message between it and rank " + std::to_string(rank_) +
                          " after " + std::to_string(deadline.timeout().count()) +
                          " ms; the message goes on waiting for the group's timeout");
    }
    lock.unlock();
    throw_if_interrupted("wait");
    lock.lock();
  }
}

bool DeferredCudaWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = wait_limit(timeout);
  // Without one the wait ends with the maker, which waits for the peer no longer than the group's timeout.
  Deadline deadline = limit ? Deadline::after(*limit) : Deadline::never();
  interruptible([&] { wait_until_settled(deadline); });
  const auto [enqueued, error] = state();
  if (error != nullptr) std::rethrow_exception(error);
  if (!limit) return enqueued->wait();
  const std::chrono::milliseconds left(deadline.remaining_ns() / 1'000'000);
  return enqueued->wait(std::max(left, std::chrono::milliseconds(1)));
}

void DeferredCudaWork::complete(c10::ivalue::Future& future) const {
  if (const auto error = exception()) {
    future.setError(error);
    return;
  }
  // As CudaWork::getFuture: the stream that is current now holds the message.
  const c10::StreamGuard on_stream(stream_);
  future.markCompleted(c10::IValue(std::vector<at::Tensor>{tensor_}));
}

void DeferredCudaWork::announce() {
  FuturePtr future;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    announced_ = true;
    future = future_;
  }
  if (future != nullptr) complete(*future);
}

FuturePtr DeferredCudaWork::getFuture() {
  FuturePtr future;
  bool late = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    future = future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(),
                                                                std::vector<c10::Device>{stream_.device()});
    late = announced_;  // announce() finds future_ unless it has already looked
  }
  if (late) complete(*future);
  return future;
}

}  // namespace tutti::face
