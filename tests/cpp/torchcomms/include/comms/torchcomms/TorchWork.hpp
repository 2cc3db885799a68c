// A stand-in for the works of TorchComms (TorchCommBackend.hpp).
//
// As there, hooks are registered and states change without a lock between them: a state that another thread sets while
// a hook is being registered loses that hook. `registering`, which tests set, runs in between.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

namespace c10::ivalue {
struct Future;
}

namespace torch::comms {

class TorchWork : public c10::intrusive_ptr_target {
 public:
  enum class WorkStatus { NOT_STARTED, INPROGRESS, COMPLETED, TIMEDOUT, ERROR };
  using Hook = std::function<void()>;

  WorkStatus status() const { return status_.load(); }
  bool isCompleted() const { return status() == WorkStatus::COMPLETED; }
  virtual void wait() = 0;
  virtual std::chrono::milliseconds getTimeout() const;
  virtual void hostSynchronize() {}
  virtual void waitBlocking() = 0;

  void registerWorkStartHook(Hook hook) { add(starts_, status() != WorkStatus::NOT_STARTED, std::move(hook)); }
  void registerWorkEndHook(Hook hook) { add(ends_, over(status()), std::move(hook)); }
  void registerWorkWaitPreHook(Hook hook) { waits_.push_back(std::move(hook)); }
  void registerWorkWaitPostHook(Hook hook) { waited_.push_back(std::move(hook)); }

  // What TorchComms' c10d backend makes of works on a device.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(const std::vector<at::Tensor>& outputs);

  static inline Hook registering;

 protected:
  void setStatus(WorkStatus status) {
    status_ = status;
    if (status == WorkStatus::INPROGRESS) run(starts_);
    if (over(status) && !std::exchange(ended_, true)) run(ends_);
  }
  void runWaitPreHooks() { run(waits_); }
  void runWaitPostHooks() { run(waited_); }
  virtual void markCompleted(c10::intrusive_ptr<c10::ivalue::Future> future, std::vector<at::Tensor> outputs);

 private:
  static bool over(WorkStatus status) {
    return status == WorkStatus::COMPLETED || status == WorkStatus::TIMEDOUT || status == WorkStatus::ERROR;
  }
  static void add(std::vector<Hook>& hooks, bool now, Hook hook) {
    if (registering) registering();
    if (now) return hook();
    hooks.push_back(std::move(hook));
  }
  static void run(const std::vector<Hook>& hooks) {
    for (const Hook& hook : hooks) hook();
  }

  std::atomic<WorkStatus> status_{WorkStatus::NOT_STARTED};
  bool ended_ = false;
  std::vector<Hook> starts_, ends_, waits_, waited_;
};

class TorchWorkCompleted : public TorchWork {
 public:
  TorchWorkCompleted() { setStatus(WorkStatus::COMPLETED); }
  void wait() override {
    runWaitPreHooks();
    runWaitPostHooks();
  }
  void waitBlocking() override {}
};

}  // namespace torch::comms
