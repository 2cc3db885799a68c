#include "communicator/call_queue.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/interruption.h"
#include "base/registry.h"
#include "base/thread.h"
#include "communicator/call_check.h"
#include "communicator/failure.h"
#include "communicator/running_here.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// What a queue's thread is at, for callbacks on it.
thread_local const void* queue_here = nullptr;

// Sleeps until `holds`, the deadline, or the time to look for signals; whether it holds.
template <class Holds>
bool wait_slice(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline& deadline,
                const Holds& holds) {
  const bool forever = deadline.timeout() == std::chrono::milliseconds::max();
  if (forever && !must_ask()) {
    changed.wait(lock, holds);
    return true;
  }
  constexpr std::int64_t kMostNs = 3'600'000'000'000, kAskNs = kAskEveryMs * 1'000'000;
  const std::int64_t slice_ns = std::min(deadline.remaining_ns(), must_ask() ? kAskNs : kMostNs);
  return changed.wait_for(lock, std::chrono::nanoseconds(std::max<std::int64_t>(0, slice_ns)), holds);
}

// An exception of the asker's own, so that no two threads hold one object: see with_own_text(). What is no Error is
// shared.
std::exception_ptr own_copy(const std::exception_ptr& error) noexcept {
  if (error == nullptr) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (const Error& shared) {
    return std::make_exception_ptr(with_own_text(shared));
  } catch (...) {
    return error;
  }
}

}  // namespace

std::exception_ptr WorkState::error() const noexcept { return done() ? own_copy(error_) : nullptr; }

void WorkState::throw_if_forked() const {
  if (forked_child()) [[unlikely]] {
    throw_error(ErrorKind::kUnsupported,
                "wait: the call belongs to the parent: Tutti is disabled in a forked child. Wait for it in the parent");
  }
}

void WorkState::wait(std::chrono::milliseconds timeout) {
  check_call_timeout("wait", timeout);
  if (!done()) {
    throw_if_forked();
    Deadline deadline = Deadline::after(timeout);
    std::unique_lock lock(mutex_);
    const auto finished = [this] { return done(); };
    while (!wait_slice(changed_, lock, deadline, finished)) {
      if (deadline.expired()) throw_error(ErrorKind::kTimeout, describe_wait_timeout(timeout));
      lock.unlock();
      // A handler that raises has aborted the call. What it has lent is its own until it has ended, which is soon.
      go_on_waiting();
      throw_if_forked();  // by a handler
      lock.lock();
    }
  }
  if (error_ != nullptr) std::rethrow_exception(own_copy(error_));
}

std::string WorkState::describe_wait_timeout(std::chrono::milliseconds timeout) const {
  return "wait: the call has not completed after " + std::to_string(timeout.count()) +
         " ms; it goes on until its own timeout";
}

void WorkState::on_done(std::function<void(Work&)> callback) {
  if (!done()) {
    throw_if_forked();
    const std::lock_guard lock(mutex_);
    if (!done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback(*this);
}

void WorkState::settle(std::exception_ptr error, int source) noexcept {
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  source_ = source;
  // release: publishes error, source and what the call wrote; pairs with the acquire in done().
  done_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void WorkState::run_callbacks() noexcept {
  std::vector<std::function<void(Work&)>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) callback(*this);
}

class CallQueue::QueuedCall final : public WorkState {
 public:
  QueuedCall(State* queue, const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive)
      : queue_(queue), runner_(&queue->runner), call_(call), timeout_(timeout), keep_alive_(std::move(keep_alive)) {}

  // On the queue's own thread, whose loop keeps the queue alive, nobody else would run it. In the midst of a collective
  // nobody can, on whatever thread: it would wait for the one that waits here.
  void wait(std::chrono::milliseconds timeout) override {
    if (!done() && RunningHere::is_in(RunningHere::innermost(), runner_)) {
      throw_error(ErrorKind::kUnsupported,
                  "wait: called by a callback of a message, or a handler of a signal, in the course of a collective of "
                  "this group, behind which the call waited for stands: wait for it elsewhere");
    }
    if (!done() && queue_here == queue_) {
      while (!done() && run_next(*queue_)) {
      }
    }
    WorkState::wait(timeout);
  }

  void run(CallRunner& runner, std::atomic<std::int64_t>& unfinished) noexcept {
    std::exception_ptr error;
    try {
      runner.run_queued(call_, timeout_);
    } catch (...) {
      error = std::current_exception();
    }
    keep_alive_.reset();
    // release: pairs with the acquire in empty(). Before settle(), so that who has waited finds the queue empty.
    unfinished.fetch_sub(1, std::memory_order_release);
    settle(std::move(error), -1);
    run_callbacks();
  }

 private:
  State* const queue_;
  const CallRunner* const runner_;  // an address: the work may outlive it
  Call call_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<void> keep_alive_;
};

WorkPtr CallQueue::push(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) {
  auto queued = std::make_shared<QueuedCall>(state_.get(), call, timeout, std::move(keep_alive));
  const std::lock_guard lock(state_->mutex);
  if (state_->stopping) throw_error(ErrorKind::kAborted, "the communicator has been shut down");
  // First: a call in a queue that nobody runs would never end.
  if (!thread_.joinable()) thread_ = start_thread("of queued calls", [state = state_] { loop(state); });
  state_->calls.push_back(queued);
  // relaxed: the caller's own later look must see it, and does.
  state_->unfinished.fetch_add(1, std::memory_order_relaxed);
  state_->changed.notify_all();
  return queued;
}

void CallQueue::loop(const std::shared_ptr<State>& state) noexcept {
  queue_here = state.get();
  for (;;) {
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stopping || !state->calls.empty(); });
      if (state->calls.empty()) return;
    }
    run_next(*state);
  }
}

// Runs the call that is first in the queue; false if there is none. On the queue's thread.
bool CallQueue::run_next(State& state) noexcept {
  std::shared_ptr<QueuedCall> next;
  {
    const std::lock_guard lock(state.mutex);
    if (state.calls.empty()) return false;
    next = std::move(state.calls.front());
    state.calls.pop_front();
  }
  next->run(state.runner, state.unfinished);
  const std::lock_guard lock(state.mutex);
  state.changed.notify_all();  // for drain()
  return true;
}

bool CallQueue::on_own_thread() const noexcept { return queue_here == state_.get(); }

bool CallQueue::drain(std::chrono::milliseconds timeout) {
  if (RunningHere::is_in(RunningHere::innermost(), &state_->runner)) return empty();  // nothing else can run meanwhile
  if (on_own_thread()) {
    while (run_next(*state_)) {
    }
    return empty();
  }
  Deadline deadline = Deadline::after(timeout);
  std::unique_lock lock(state_->mutex);
  while (!wait_slice(state_->changed, lock, deadline, [this] { return empty(); })) {
    if (deadline.expired()) return false;
    lock.unlock();
    if (!go_on_waiting()) return false;
    lock.lock();
  }
  return true;
}

void CallQueue::stop() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace tutti
