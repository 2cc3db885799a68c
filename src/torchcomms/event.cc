#include "torchcomms/event.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "aten/errors.h"
#include "aten/signals.h"
#include "base/registry.h"
#include "interpreter/left_behind.h"

namespace tutti::torchcomms {
namespace {

using Clock = std::chrono::steady_clock;

// How long a signal of Python's may go unnoticed.
constexpr auto kSlice = std::chrono::milliseconds(100);

}  // namespace

Event::Event(std::function<std::string()> late)
    : late_(std::move(late)), future_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {}

c10::intrusive_ptr<Event> Event::ended() {
  auto event = c10::make_intrusive<Event>();
  event->end();
  return event;
}

bool Event::end(std::exception_ptr error, bool late) {
  if (forked_child()) return true;  // a thread of the parent's may have had the lock, and nobody else waits
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (completed_) return false;
    was_late_.store(late, std::memory_order_relaxed);
    completed_ = true;
    exception_ = error;
  }
  cv_.notify_all();
  error != nullptr ? future_->setError(error) : future_->markCompleted();
  return true;
}

bool Event::wait(std::chrono::milliseconds timeout) {
  const StaysBehind stays;
  const bool limited = timeout.count() > 0;
  const auto start = Clock::now();
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  for (;;) {
    if (forked_child()) {  // perhaps by a handler. Who holds the lock is a thread of the parent's, for ever
      if (lock.try_lock() && completed_) break;
      face::throw_backend_error(
          "tutti: wait: the signal belongs to the parent: Tutti is disabled in a forked child. Await it there");
    }
    lock.lock();
    auto slice = std::chrono::nanoseconds(kSlice);
    if (limited) slice = std::clamp<std::chrono::nanoseconds>(timeout - (Clock::now() - start), {}, slice);
    if (cv_.wait_for(lock, slice, [this] { return completed_; })) break;
    lock.unlock();
    bool late = false;
    try {
      std::string handler;
      if (const auto raised = face::run_python_handlers(handler)) std::rethrow_exception(raised);
      late = limited && Clock::now() - start >= timeout;
      if (late) C10_THROW_ERROR(DistBackendError, late_());
    } catch (const c10::Error&) {
      if (end(std::current_exception(), late)) throw;
    } catch (...) {  // Python's own can be thrown once: others that wait for this hear of it otherwise
      end(std::make_exception_ptr(c10::DistBackendError(
          {__func__, __FILE__, __LINE__}, "tutti: wait: a handler of a signal has raised in an earlier wait")));
      throw;
    }
  }
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return true;
}

}  // namespace tutti::torchcomms
