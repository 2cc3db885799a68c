#include "torch/deferred_cuda_work.h"

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <string>
#include <utility>

#include "torch/errors.h"

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

C10dWorkPtr DeferredCudaWork::work() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  return work_;
}

bool DeferredCudaWork::isCompleted() {
  C10dWorkPtr work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != nullptr) return true;
    work = work_;
  }
  return work != nullptr && work->isCompleted();
}

bool DeferredCudaWork::isSuccess() const {
  C10dWorkPtr work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != nullptr) return false;
    work = work_;
  }
  return work == nullptr || work->isSuccess();  // as CudaWork: nothing has gone wrong so far
}

std::exception_ptr DeferredCudaWork::exception() const {
  C10dWorkPtr work;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != nullptr) return error_;
    work = work_;
  }
  return work != nullptr ? work->exception() : nullptr;
}

bool DeferredCudaWork::wait(std::chrono::milliseconds timeout) {
  const bool limited = timeout != kNoTimeout && timeout.count() >= 0;
  const auto start = std::chrono::steady_clock::now();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto settled = [this] { return work_ != nullptr || error_ != nullptr; };
    if (!limited) {
      cv_.wait(lock, settled);  // ends with the maker, which waits for the peer no longer than the group's timeout
    } else if (!cv_.wait_until(lock, start + timeout, settled)) {
      throw_backend_error("wait: rank " + std::to_string(peer_) +
                          " has not come for the first message between it and rank " + std::to_string(rank_) +
                          " after " + std::to_string(timeout.count()) +
                          " ms; the message goes on waiting for the group's timeout");
    }
  }
  const C10dWorkPtr enqueued = work();
  if (!limited) return enqueued->wait();
  const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
  return enqueued->wait(std::max(timeout - spent, std::chrono::milliseconds(1)));
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
