// The c10d::Work of a message that a maker's thread enqueues later (tutti::DeferredMessage).
//
// Until then it has not completed, and wait() and synchronize() block the host, at most for the timeout: a stream can
// wait only for what has been enqueued. From then on it is the CudaWork of that message. A message that is never
// enqueued has failed, and says why. The future completes when the message is enqueued, and blocks nobody.
//
// Thread rule: all members from any thread; the maker's thread calls settle(), then announce(). mutex_
// (of c10d::Work) guards what changes; no callback runs and no tensor is dropped while it is held.
#pragma once

#include <c10/core/Stream.h>

#include <exception>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/release.h"
#include "torch/work.h"

namespace tutti::face {

class DeferredCudaWork final : public c10d::Work {
 public:
  // `peer`: of the group, for messages to people.
  DeferredCudaWork(int rank, int peer, c10d::OpType op, c10::Stream stream, const at::Tensor& tensor);
  ~DeferredCudaWork() override { left_by_child(tensor_, future_); }  // as CudaWork

  // `work`: of the message, which has been enqueued; else `error`, as torch raises it.
  void settle(C10dWorkPtr work, const std::exception_ptr& error);
  // Completes the future.
  void announce();

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override { return {tensor_}; }
  FuturePtr getFuture() override;

 private:
  // Nothing while it has not been enqueued.
  std::pair<C10dWorkPtr, std::exception_ptr> state() const;
  void complete(c10::ivalue::Future& future) const;
  void wait_until_settled(Deadline& deadline);

  const int peer_;
  const c10::Stream stream_;
  const at::Tensor tensor_;
  C10dWorkPtr work_;          // guarded by mutex_; set once
  std::exception_ptr error_;  // guarded by mutex_; set once, instead of work_
  bool announced_ = false;    // guarded by mutex_
  FuturePtr future_;          // made on demand; guarded by mutex_
};

}  // namespace tutti::face
