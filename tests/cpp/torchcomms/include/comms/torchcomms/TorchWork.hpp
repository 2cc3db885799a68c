// A stand-in for the works of TorchComms (TorchCommBackend.hpp).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

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

  Hook before_wait, after_wait, at_end;

 protected:
  void setStatus(WorkStatus status) {
    status_ = status;
    if (status != WorkStatus::INPROGRESS && at_end) at_end();
  }
  void runWaitPreHooks() {
    if (before_wait) before_wait();
  }
  void runWaitPostHooks() {
    if (after_wait) after_wait();
  }

 private:
  std::atomic<WorkStatus> status_{WorkStatus::NOT_STARTED};
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
