// The handle of an asynchronous call.
//
// Thread rule: all members may be called from any thread.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>

namespace tutti {

class Work {
 public:
  virtual ~Work() = default;

  virtual bool done() const noexcept = 0;

  // Waits for completion. Rethrows the call's Error; throws Error(kTimeout) if `timeout` passes first (the call
  // goes on: its own deadline decides over it) and Error(kInvalidArgument) if it is negative. max() waits as long as
  // the call itself may take.
  virtual void wait(std::chrono::milliseconds timeout = std::chrono::milliseconds::max()) = 0;

  // The call's Error, or null while it runs and after success.
  virtual std::exception_ptr error() const noexcept = 0;

  // For a receive: the rank the message came from, -1 before completion.
  virtual int source() const noexcept = 0;

  // Runs `callback` once after completion: on the completing thread, or at once if already done.
  virtual void on_done(std::function<void(Work&)> callback) = 0;
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace tutti
