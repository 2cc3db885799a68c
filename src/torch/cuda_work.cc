#include "torch/cuda_work.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "aten/cuda_streams.h"
#include "aten/errors.h"
#include "aten/signals.h"
#include "base/release.h"

namespace tutti::face {

CudaWork::CudaWork(int rank, c10d::OpType op, std::weak_ptr<Communicator> group, const CudaLane& lane,
                   c10::Stream stream, bool side, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs)
    : c10d::Work(rank, op),
      group_(std::move(group)),
      communicator_(lane.communicator),
      events_(lane.events),
      stream_(stream),
      side_(side),
      outputs_(outputs.begin(), outputs.end()) {
  if (!side_) return;
  stash_.assign(inputs.begin(), inputs.end());
  stash_.insert(stash_.end(), outputs.begin(), outputs.end());
  end_.emplace(events_, stream_);
}

void CudaWork::keep(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (side_) stash_.push_back(tensor);
}

CudaWork::~CudaWork() {
  // A child may not touch CUDA, as the allocator may for memory that it gets back, and a future with its events.
  if (left_by_child(stash_, outputs_, future_)) return;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  for (const at::Tensor& tensor : stash_) cuda.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
}

// mutex_ is held. Of a synchronous call the event comes late, after whatever else its stream got meanwhile; recording
// one at each call would cost every call what few callers ask for.
const CudaEvent& CudaWork::end() {
  if (!end_.has_value()) end_.emplace(events_, stream_);
  return *end_;
}

void CudaWork::throw_failure() const {
  if (const auto failure = communicator_->failure()) throw_as_torch(*failure);
}

bool CudaWork::isCompleted() {
  if (communicator_->failure().has_value()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  return end().query();
}

bool CudaWork::isSuccess() const { return !communicator_->failure().has_value(); }

std::exception_ptr CudaWork::exception() const {
  const auto failure = communicator_->failure();
  return failure.has_value() ? as_torch(std::make_exception_ptr(*failure)) : nullptr;
}

void CudaWork::synchronize() {
  throw_failure();
  if (!side_) return;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const std::lock_guard<std::mutex> lock(mutex_);
  end().block(cuda.getStream(stream_.device()));
  stash_.clear();
}

bool CudaWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = wait_limit(timeout);
  synchronize();
  if (!limit) return true;
  // The group first: what the other ranks find there says why their kernels end.
  const auto abort = [this](const std::string& reason) {
    if (const auto group = group_.lock()) group->abort(reason);
    communicator_->abort(reason);
  };
  interruptible_by(abort, [&] {
    Deadline deadline = Deadline::after(*limit);
    if (over_in_time([this] { return isCompleted(); }, deadline, "wait")) return;
    throw_backend_error("wait: the call has not completed on the GPU after " + std::to_string(limit->count()) +
                        " ms; it goes on until its own timeout");
  });
  throw_failure();
  return true;
}

FuturePtr CudaWork::getFuture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (future_ == nullptr) future_ = enqueued_future(stream_, result());
  return future_;
}

}  // namespace tutti::face
