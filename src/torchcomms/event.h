// A c10d::Work that ends when somebody says so, not when a call of a group does: what waits for a signal of a window.
//
// Ownership: shared by who waits and who ends it. Thread rule: any thread; end() counts once.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

namespace tutti::torchcomms {

class Event final : public c10d::Work {
 public:
  static c10::intrusive_ptr<Event> ended();

  // `late`: why a wait that has run out of time raises.
  explicit Event(std::function<std::string()> late = {});

  // False: it had ended before, and nothing has changed. In a forked child it does nothing.
  bool end(std::exception_ptr error = nullptr) { return end(std::move(error), /*late=*/false); }
  // A wait has run out of time, and has ended it.
  bool late() const noexcept { return was_late_.load(std::memory_order_relaxed); }

  // No limit where `timeout` is not positive. Signals of Python's are handled meanwhile. A wait that is late, or that
  // a handler has interrupted, ends the event with that error. In a forked child it raises unless the event has ended.
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  bool end(std::exception_ptr error, bool late);

  const std::function<std::string()> late_;
  // relaxed: written before the event completes, under the lock; who asks has seen that it has completed.
  std::atomic<bool> was_late_{false};
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tutti::torchcomms
