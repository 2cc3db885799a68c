#include "torch/work.h"

#include <ATen/core/ivalue_inl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>

#include "aten/errors.h"
#include "aten/signals.h"
#include "base/thread.h"
#include "interpreter/without_python.h"
#include "tutti/error.h"

namespace tutti::face {
namespace {

FuturePtr new_future() { return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors()); }

// Completes `future` with `outputs` or `error`, running its callbacks on this thread.
void complete(c10::ivalue::Future& future, const Outputs& outputs, const std::exception_ptr& error) {
  if (error != nullptr) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(std::vector<at::Tensor>(outputs.begin(), outputs.end())));
  }
}

}  // namespace

std::optional<std::chrono::milliseconds> wait_limit(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout || timeout == c10d::kUnsetTimeout) return std::nullopt;
  if (timeout.count() < 0) refuse_negative("wait", timeout);
  return timeout;
}

CompletedWork::CompletedWork(int rank, c10d::OpType op, at::ArrayRef<at::Tensor> outputs)
    : c10d::Work(rank, op), outputs_(outputs.begin(), outputs.end()) {
  completed_ = true;
}

FuturePtr CompletedWork::getFuture() {
  auto future = new_future();
  future->markCompleted(c10::IValue(result()));
  return future;
}

AsyncWork::AsyncWork(int rank, c10d::OpType op, at::ArrayRef<at::Tensor> outputs,
                     const std::shared_ptr<Communicator>& communicator, bool overlap_future)
    : c10d::Work(rank, op),
      communicator_(communicator),
      sequence_(communicator->sequence()),
      overlap_future_(overlap_future),
      outputs_(outputs.begin(), outputs.end()) {}

const WorkPtr& AsyncWork::call() const {
  if (call_ == nullptr)
    refuse("a message of a batch is sent when the batch ends, if all of the batch can be: wait then");
  return call_;
}

bool AsyncWork::isCompleted() {
  if (!staged_) return call_ != nullptr && call_->done();
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_;
}

bool AsyncWork::isSuccess() const {
  if (!staged_) return call_ != nullptr && call_->done() && call_->error() == nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  return completed_ && exception_ == nullptr;
}

std::exception_ptr AsyncWork::exception() const {
  if (!staged_) return call_ != nullptr ? as_torch(call_->error()) : nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

int AsyncWork::sourceRank() const { return call()->source(); }

bool AsyncWork::wait(std::chrono::milliseconds timeout) {
  if (staged_) return wait_staged(timeout);
  translated([&] { wait_for_call(timeout); });
  return true;
}

void AsyncWork::wait_for_call(std::chrono::milliseconds timeout) {
  const auto limit = wait_limit(timeout).value_or(std::chrono::milliseconds::max());
  if (call()->done()) return call_->wait();  // raises its error, if it has one
  const auto abort = [this](const std::string& reason) {
    if (const auto communicator = communicator_.lock()) communicator->abort(reason);
  };
  interruptible_by(abort, [&] { call_->wait(limit); });
}

bool AsyncWork::wait_staged(std::chrono::milliseconds timeout) {
  // The call first: its own deadline and its message of who is missing. What is left then is local and short.
  try {
    wait_for_call(timeout);
  } catch (const Error& error) {
    if (!call_->done()) throw_as_torch(error);  // `timeout` passed; the call goes on
  }
  std::unique_lock<std::mutex> lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return true;
}

void AsyncWork::complete_staged(std::exception_ptr error) {
  error = as_torch(error);
  FuturePtr future;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    future = future_;
    future_settled_ = true;
    exception_ = error;
  }
  finish(error);
  if (future != nullptr) complete(*future, outputs_, error);
}

void AsyncWork::wait_if_python_asks() {
  // A callback on a thread of ours would wait for a future that this thread is to complete.
  if ((overlap_future_ && !on_library_thread()) || !holds_python()) return;
  std::exception_ptr raised;
  without_python([&] {
    try {
      wait();
    } catch (const py::error_already_set&) {
      raised = std::current_exception();  // by a handler of a signal: the caller's
    } catch (const std::exception&) {
      // The future carries it.
    }
  });
  if (raised != nullptr) std::rethrow_exception(raised);
}

std::vector<at::Tensor> AsyncWork::result() {
  TORCH_CHECK(isCompleted(), "Work.result() of a call that has not completed: wait() first");
  return {outputs_.begin(), outputs_.end()};
}

FuturePtr AsyncWork::getFuture() {
  call();
  wait_if_python_asks();
  FuturePtr future;
  bool over = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    future = future_ = new_future();
    over = future_settled_;
  }
  if (staged_) {
    // complete_staged finds future_ unless it has already looked.
    if (over) complete(*future, outputs_, exception_);
  } else {
    call_->on_done(
        [future, outputs = outputs_](tutti::Work& done) { complete(*future, outputs, as_torch(done.error())); });
  }
  return future;
}

GroupWork::GroupWork(int rank, std::vector<C10dWorkPtr> works)
    : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool GroupWork::isCompleted() {
  for (const auto& work : works_) {
    if (!work->isCompleted()) return false;
  }
  return true;
}

bool GroupWork::isSuccess() const {
  for (const auto& work : works_) {
    if (!work->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr GroupWork::exception() const {
  for (const auto& work : works_) {
    if (auto error = work->exception()) return error;
  }
  return nullptr;
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = wait_limit(timeout);
  const auto start = std::chrono::steady_clock::now();
  for (const auto& work : works_) {
    if (!limit) {
      work->wait();
      continue;
    }
    // One limit for all of them, not one for each.
    const auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    work->wait(std::max(*limit - spent, std::chrono::milliseconds(1)));
  }
  return true;
}

std::vector<at::Tensor> GroupWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    for (auto& tensor : work->result()) all.push_back(std::move(tensor));
  }
  return all;
}

FuturePtr GroupWork::getFuture() {
  auto future = new_future();
  if (works_.empty()) {
    complete(*future, {}, nullptr);
    return future;
  }
  // acq_rel: the last one to count down sees what the others' calls wrote.
  auto remaining = std::make_shared<std::atomic<std::size_t>>(works_.size());
  const auto self = c10::intrusive_ptr<GroupWork>::unsafe_reclaim_from_nonowning(this);
  for (const auto& work : works_) {
    work->getFuture()->addCallback([self, future, remaining](c10::ivalue::Future&) {
      if (remaining->fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      const auto error = self->exception();
      const auto outputs = error == nullptr ? self->result() : std::vector<at::Tensor>();
      complete(*future, Outputs(outputs.begin(), outputs.end()), error);
    });
  }
  return future;
}

}  // namespace tutti::face
