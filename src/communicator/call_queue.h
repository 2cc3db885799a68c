// Asynchronous collectives: a queue and the thread that runs it.
//
// Thread rule: any thread may push. The thread starts at the first push and ends at stop(). The mutex guards the queue
// and is never held while a call runs or a callback is called; a leaf.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tutti/call.h"
#include "tutti/work.h"

namespace tutti {

// Who runs the calls: throws Error when one fails.
class CallRunner {
 public:
  virtual ~CallRunner() = default;
  virtual void run_queued(const Call& call, std::chrono::milliseconds timeout) = 0;
};

// What every asynchronous call has in common: the state that its caller waits for.
class WorkState : public Work {
 public:
  // acquire: pairs with the release in settle(); makes error, source and the call's output visible.
  bool done() const noexcept override { return done_.load(std::memory_order_acquire); }
  void wait(std::chrono::milliseconds timeout) override;
  std::exception_ptr error() const noexcept override;
  int source() const noexcept override { return done() ? source_ : -1; }
  void on_done(std::function<void(Work&)> callback) override;

 protected:
  // Once. Wakes the waiters. The callbacks that are there by then run later, by run_callbacks(); those that come later
  // run at once.
  void settle(std::exception_ptr error, int source) noexcept;
  void run_callbacks() noexcept;
  // In a forked child what has not completed never will. Before any lock is taken.
  void throw_if_forked() const;
  std::string describe_wait_timeout(std::chrono::milliseconds timeout) const;

 private:
  std::atomic<bool> done_{false};
  mutable std::mutex mutex_;  // guards what follows; a leaf
  std::condition_variable changed_;
  std::exception_ptr error_;
  int source_ = -1;
  std::vector<std::function<void(Work&)>> callbacks_;
};

class CallQueue {
 public:
  explicit CallQueue(CallRunner& runner) : state_(std::make_shared<State>(runner)) {}
  ~CallQueue() { stop(); }
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // Throws Error(kAborted) after stop(), and Error(kExhausted) if the thread cannot be started.
  WorkPtr push(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive);

  // No call is pushed and unfinished. acquire: whoever sees it sees everything that the queue's calls have written.
  bool empty() const noexcept { return state_->unfinished.load(std::memory_order_acquire) == 0; }

  // Waits until all calls have finished, at most `timeout`, and no longer than the handlers of signals let it. On the
  // queue's own thread it runs them, and in the midst of a collective it does not wait.
  bool drain(std::chrono::milliseconds timeout);

  // Whether the caller is a callback on the queue's own thread. It must not wait for what this thread is to run; so its
  // calls run at once, and a wait for a queued one runs the queue up to it.
  bool on_own_thread() const noexcept;

  // Ends the thread. The runner must be raising by then: calls that wait in the queue are run and end so.
  void stop() noexcept;

 private:
  class QueuedCall;
  // Shared with the thread and, for their waits, with the calls that it runs.
  struct State {
    explicit State(CallRunner& r) : runner(r) {}  // a deque takes memory where it is made
    CallRunner& runner;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::shared_ptr<QueuedCall>> calls;
    bool stopping = false;
    std::atomic<std::int64_t> unfinished{0};
  };
  static void loop(const std::shared_ptr<State>& state) noexcept;
  static bool run_next(State& state) noexcept;

  std::shared_ptr<State> state_;
  std::thread thread_;  // started under the mutex
};

}  // namespace tutti
