#include "communicator/call_queue.h"

#include <vector>

#include "base/registry.h"
#include "tutti/error.h"

namespace tutti {

void WorkState::throw_if_forked() const {
  if (forked_child()) [[unlikely]] {
    throw_error(ErrorKind::kUnsupported,
                "wait: the call belongs to the parent: Tutti is disabled in a forked child. Wait for it in the parent");
  }
}

void WorkState::wait(std::chrono::milliseconds timeout) {
  if (!done()) {
    throw_if_forked();
    std::unique_lock lock(mutex_);
    const auto finished = [this] { return done(); };
    if (timeout == std::chrono::milliseconds::max()) {
      changed_.wait(lock, finished);
    } else if (!changed_.wait_for(lock, timeout, finished)) {
      throw_error(ErrorKind::kTimeout, describe_wait_timeout(timeout));
    }
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
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

void WorkState::finish(std::exception_ptr error, int source) noexcept {
  std::vector<std::function<void(Work&)>> callbacks;
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    source_ = source;
    callbacks.swap(callbacks_);
    // release: publishes error, source and what the call wrote; pairs with the acquire in done().
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  for (const auto& callback : callbacks) callback(*this);
}

class CallQueue::QueuedCall final : public WorkState {
 public:
  QueuedCall(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive)
      : call_(call), timeout_(timeout), keep_alive_(std::move(keep_alive)) {}

  void run(CallRunner& runner, std::atomic<std::int64_t>& unfinished) noexcept {
    std::exception_ptr error;
    try {
      runner.run_queued(call_, timeout_);
    } catch (...) {
      error = std::current_exception();
    }
    keep_alive_.reset();
    // release: pairs with the acquire in empty(). Before finish(), so that who has waited finds the queue empty.
    unfinished.fetch_sub(1, std::memory_order_release);
    finish(std::move(error), -1);
  }

 private:
  Call call_;
  std::chrono::milliseconds timeout_;
  std::shared_ptr<void> keep_alive_;
};

WorkPtr CallQueue::push(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) {
  auto queued = std::make_shared<QueuedCall>(call, timeout, std::move(keep_alive));
  const std::lock_guard lock(state_->mutex);
  if (state_->stopping) throw_error(ErrorKind::kAborted, "the communicator has been shut down");
  // relaxed: the caller's own later look must see it, and does.
  state_->unfinished.fetch_add(1, std::memory_order_relaxed);
  state_->calls.push_back(queued);
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { loop(state); });
  state_->changed.notify_all();
  return queued;
}

void CallQueue::loop(const std::shared_ptr<State>& state) noexcept {
  for (;;) {
    std::shared_ptr<QueuedCall> next;
    {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->stopping || !state->calls.empty(); });
      if (state->calls.empty()) return;
      next = std::move(state->calls.front());
      state->calls.pop_front();
    }
    next->run(state->runner, state->unfinished);
    const std::lock_guard lock(state->mutex);
    state->changed.notify_all();  // for drain()
  }
}

bool CallQueue::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, timeout, [this] { return empty(); });
}

void CallQueue::stop() noexcept {
  std::deque<std::shared_ptr<QueuedCall>> left;
  const bool own_thread = thread_.joinable() && thread_.get_id() == std::this_thread::get_id();
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    // The runner is about to be destroyed under its own thread: end here what it would run afterwards.
    if (own_thread) left.swap(state_->calls);
    state_->changed.notify_all();
  }
  for (const auto& call : left) call->run(state_->runner, state_->unfinished);
  if (!thread_.joinable()) return;
  if (own_thread) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

}  // namespace tutti
