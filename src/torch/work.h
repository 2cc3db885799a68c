// The c10d::Work handles that Tutti's calls return.
//
// - CompletedWork: a synchronous call; nothing can be waited for.
// - AsyncWork: a queued call. Plain ones ask tutti::Work directly. Those with something left to do after the call
//   (temporaries to write back) are staged: they complete only when that is done.
// - GroupWork: what was issued between startCoalescing and endCoalescing.
//
// Futures: get_future() called from Python waits for the call, so that the callbacks of `.then` run on the caller's
// thread in program order, as they do on NCCL, where a future is complete once the call is issued. Callbacks that
// communicate (PowerSGD) would otherwise issue their calls in another order on each rank. Options.overlap_futures turns
// it off, but for calls that such a callback makes itself. DDP itself takes its futures in C++ and overlaps always.
//
// Ownership: an AsyncWork never owns the communicator: its last reference may be dropped by the progress thread, which
// the communicator's destructor joins. Thread rule: all members from any thread; mutex_ (of c10d::Work) guards what
// changes and is held while no callback runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tutti/communicator.h"
#include "tutti/work.h"

namespace tutti::face {

using Outputs = c10::SmallVector<at::Tensor, 1>;
using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
using C10dWorkPtr = c10::intrusive_ptr<c10d::Work>;

// The limit of a wait as PyTorch gives it: nothing for its two marks of none. Throws ValueError if it is negative.
std::optional<std::chrono::milliseconds> wait_limit(std::chrono::milliseconds timeout);

class CompletedWork final : public c10d::Work {
 public:
  CompletedWork(int rank, c10d::OpType op, at::ArrayRef<at::Tensor> outputs);

  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  std::exception_ptr exception() const override { return nullptr; }
  bool wait(std::chrono::milliseconds /*timeout*/ = kNoTimeout) override { return true; }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return {outputs_.begin(), outputs_.end()}; }
  FuturePtr getFuture() override;

 private:
  Outputs outputs_;
};

class AsyncWork final : public c10d::Work {
 public:
  AsyncWork(int rank, c10d::OpType op, at::ArrayRef<at::Tensor> outputs,
            const std::shared_ptr<Communicator>& communicator, bool overlap_future);

  // The call behind this work, set once: before the work is handed out, or when the batch ends that it is of. A work
  // that has none yet has not completed, and cannot be waited for.
  void attach(WorkPtr call) { call_ = std::move(call); }

  // The place of the call among the group's, counted by communicator->sequence(); before the work is handed out.
  void number(std::uint64_t sequence) { sequence_ = sequence; }

  // As attach, but the work completes only after `finish` ran on the completing thread. `self` keeps it alive.
  template <typename Finish>
  static void attach_staged(const c10::intrusive_ptr<AsyncWork>& self, const WorkPtr& call, Finish finish);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override;
  FuturePtr getFuture() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  // Raises where there is none.
  const WorkPtr& call() const;
  void complete_staged(std::exception_ptr error);
  bool wait_staged(std::chrono::milliseconds timeout);
  void wait_if_python_asks();

  // call_->wait(), with Python's signal handlers run meanwhile.
  void wait_for_call(std::chrono::milliseconds timeout);

  const std::weak_ptr<Communicator> communicator_;  // to abort it
  std::uint64_t sequence_;
  const bool overlap_future_;
  Outputs outputs_;
  WorkPtr call_;
  bool staged_ = false;
  FuturePtr future_;             // made on demand; guarded by mutex_
  bool future_settled_ = false;  // a staged work looked for future_; guarded by mutex_
};

class GroupWork final : public c10d::Work {
 public:
  GroupWork(int rank, std::vector<C10dWorkPtr> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override { wait(); }
  std::vector<at::Tensor> result() override;
  FuturePtr getFuture() override;

 private:
  std::vector<C10dWorkPtr> works_;
};

template <typename Finish>
void AsyncWork::attach_staged(const c10::intrusive_ptr<AsyncWork>& self, const WorkPtr& call, Finish finish) {
  self->staged_ = true;
  self->call_ = call;
  call->on_done([self, finish](tutti::Work& done) mutable {
    std::exception_ptr error = done.error();
    if (error == nullptr) {
      try {
        finish();
      } catch (...) {
        error = std::current_exception();
      }
    }
    self->complete_staged(std::move(error));
  });
}

}  // namespace tutti::face
