// The TorchWork of an asynchronous call: a c10d::Work, and the states and hooks that TorchComms adds to it.
//
// On CPU tensors the state follows the call: a thread of the library sets it, and runs the end hooks, when the call is
// over; wait() blocks until then. On CUDA tensors wait() makes the caller's current stream wait, not the host, and the
// state becomes COMPLETED there: what comes after on that stream sees the result. waitBlocking() waits on the host.
//
// Ownership: while a call on CPU tensors runs, the library holds its work. Thread rule: TorchWork's, one thread calls;
// the library's thread changes the state beside it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <comms/torchcomms/TorchWork.hpp>
#include <functional>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tutti::torchcomms {

class CallWork final : public ::torch::comms::TorchWork {
 public:
  // `timeout`: that the call was given, zero for none. `limit`: how long waits may take, zero where the call itself
  // ends in time. `failed` runs on the thread whose wait() throws, before it does.
  static c10::intrusive_ptr<CallWork> make(c10::intrusive_ptr<c10d::Work> call, bool on_device,
                                           std::chrono::milliseconds timeout, std::chrono::milliseconds limit,
                                           std::function<void()> failed);

  void wait() override;
  void waitBlocking() override;
  void hostSynchronize() override { waitBlocking(); }
  std::chrono::milliseconds getTimeout() const override;

  CallWork(c10::intrusive_ptr<c10d::Work> call, bool on_device, std::chrono::milliseconds timeout,
           std::chrono::milliseconds limit, std::function<void()> failed);

 private:
  void wait_for_call(std::chrono::milliseconds timeout);
  // The first of the library's thread and wait() sets it, and the other waits for that: when wait() returns, it is set.
  void end(WorkStatus status);

  const c10::intrusive_ptr<c10d::Work> call_;
  const bool on_device_;
  const std::chrono::milliseconds timeout_;
  const std::chrono::milliseconds limit_;
  const std::function<void()> failed_;
  std::once_flag ended_;
  std::atomic<std::thread::id> ending_{};  // whose hooks are running; relaxed: asked for by that thread alone
};

}  // namespace tutti::torchcomms
