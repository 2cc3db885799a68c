#include "communicator/deferred_calls.h"

#include <utility>

#include "base/thread.h"

namespace tutti {

DeferredCalls::DeferredCalls(std::function<void()> make)
    : state_(std::make_shared<State>()),
      maker_(start_thread("that connects to a rank",
                          [state = state_, make = std::move(make)] { make_and_run(*state, make); })) {}

DeferredCalls::~DeferredCalls() {
  if (maker_.get_id() == std::this_thread::get_id()) {
    maker_.detach();  // in announce(): the thread ends by itself, and uses nothing but State and its calls
  } else {
    maker_.join();
  }
}

// Whether it is made; false while it is being made.
bool DeferredCalls::settled(const State& state) {
  // acquire: pairs with the release in make_and_run, so that what `make` and the queued calls wrote is seen.
  const Stage stage = state.stage.load(std::memory_order_acquire);
  if (stage == Stage::kFailed) std::rethrow_exception(state.error);
  return stage == Stage::kReady;
}

bool DeferredCalls::ready() const { return settled(*state_); }

bool DeferredCalls::queue(Call& call) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  // Under the lock: the maker leaves making only when it holds it and finds the queue empty.
  if (settled(*state_)) return false;
  state_->queued.push_back(std::move(call));
  return true;
}

void DeferredCalls::make_and_run(State& state, const std::function<void()>& make) {
  std::exception_ptr error;
  try {
    make();
  } catch (...) {
    error = std::current_exception();
  }
  std::list<Call> done;
  for (bool settled = false; !settled;) {
    DeferredCall* const before = done.empty() ? nullptr : done.back().get();
    {
      const std::lock_guard<std::mutex> lock(state.mutex);
      settled = state.queued.empty();
      if (settled) {
        state.error = error;
        // release: publishes `error`, and what `make` and the calls wrote, to those who load it in settled().
        state.stage.store(error == nullptr ? Stage::kReady : Stage::kFailed, std::memory_order_release);
      } else {
        done.splice(done.end(), state.queued, state.queued.begin());
      }
    }
    if (before != nullptr) before->wake();  // who waited for the last one finds the stage above
    if (!settled) error == nullptr ? done.back()->run() : done.back()->fail(error);
  }
  for (Call& call : done) {
    call->announce();
    call.reset();
  }
}

}  // namespace tutti
