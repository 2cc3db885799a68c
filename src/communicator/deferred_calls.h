// Calls on something that takes long to make, without a wait for it: a thread makes it; calls issued meanwhile are
// queued and run by that thread, in the order of issue; from then on callers run their own.
//
// If making fails, the queued calls fail, and so does every later one, by the same exception: it is never tried again.
//
// The thread takes no memory, so that a call that is queued runs or fails.
//
// Ownership: holds the queued calls and the thread. Thread rule: all members from any thread; the destructor after all
// others. It waits for the thread, so whoever destroys this first lets `make` give up; from within announce() of a call
// it does not wait. Nothing of a call runs or is destroyed while a lock is held: dropping a tensor may take Python's
// global lock, which a caller may hold.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

namespace tutti {

// Of each call, the maker's thread runs run() or fail(), then wake(), then announce().
class DeferredCall {
 public:
  virtual ~DeferredCall() = default;
  virtual void run() noexcept = 0;
  // `error`: what making threw.
  virtual void fail(const std::exception_ptr& error) noexcept = 0;
  // Lets those go on who wait for the call. If it is the last one queued, they find ready().
  virtual void wake() noexcept = 0;
  // Runs callbacks. Comes when nothing is queued any more, so that callbacks may issue calls here and wait for them.
  virtual void announce() noexcept = 0;
};

class DeferredCalls {
 public:
  using Call = std::unique_ptr<DeferredCall>;

  // Starts the thread, which runs `make` once. Throws Error(kExhausted) if there can be no thread.
  explicit DeferredCalls(std::function<void()> make);
  ~DeferredCalls();
  DeferredCalls(const DeferredCalls&) = delete;
  DeferredCalls& operator=(const DeferredCalls&) = delete;

  // Whether it is made and all queued calls have run: callers run their own now. Throws what `make` threw.
  bool ready() const;
  // Queues the call; false, and leaves it, if the caller may run it now. Throws what `make` threw, or std::bad_alloc,
  // and leaves it.
  bool queue(Call& call);

 private:
  enum class Stage { kMaking, kReady, kFailed };
  // Shared with the thread, which may outlive this object when a callback destroys it.
  struct State {
    std::mutex mutex;  // guards queued; a leaf
    std::list<Call> queued;
    std::exception_ptr error;  // written before kFailed is published
    std::atomic<Stage> stage{Stage::kMaking};
  };

  static void make_and_run(State& state, const std::function<void()>& make);
  static bool settled(const State& state);

  const std::shared_ptr<State> state_;
  std::thread maker_;  // the last member: it uses the others
};

}  // namespace tutti
