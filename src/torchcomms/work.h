// The TorchWork of an asynchronous call: a c10d::Work, and the states and hooks that TorchComms adds to it.
//
// On CPU tensors the state follows the call: a thread of the library sets it, and runs the end hooks, when the call is
// over; wait() blocks until then. On CUDA tensors wait() makes the caller's current stream wait, not the host, and the
// state becomes COMPLETED there: what comes after on that stream sees the result. Where nobody waits, the watch
// (watch.h) sets it once the GPU has passed the call. waitBlocking() waits on the host.
//
// TorchComms registers hooks with a work that it has got, and asks that no other thread changes its state meanwhile. So
// another thread than the maker's ends a work only when that is kSettled old: the maker has registered by then, if it
// does so at once. Until then the watch keeps the news, unless somebody waits.
//
// Ownership: while a call runs, the library or the watch holds its work. Thread rule: TorchWork's, one thread calls;
// the library's threads change the state beside it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <comms/torchcomms/TorchWork.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "base/release.h"
#include "torchcomms/link.h"

namespace tutti::torchcomms {

// For waits on the host that have no limit of their own: the call has one, and ends by it. c10d's works take a limit to
// mean the host.
inline constexpr std::chrono::milliseconds kAsLongAsTheCall = std::chrono::hours(24 * 365);

// Whether what a wait with this limit has raised is that limit: the call itself goes on, and has not named itself.
inline bool is_of_wait(c10d::Work& call, std::chrono::milliseconds limit) {
  return limit.count() > 0 && limit < kAsLongAsTheCall && !call.isCompleted();
}

// Whether the caller's current stream of that GPU is captured: calls go into a graph then, and never end.
bool capturing(c10::Device gpu);
// The number of the capture that a stream is in; 0: none.
std::uint64_t capture_of(const c10::Stream& stream);

class CallWork final : public ::torch::comms::TorchWork {
 public:
  struct About {
    std::optional<c10::Device> device;    // of the call's tensors, if that is no CPU
    std::chrono::milliseconds timeout{};  // the call's, or else the communicator's
    // How long waits on the host may take, zero where the call itself ends in time. On a device that is the group's
    // business: wait() has no limit there, which c10d's works take to mean the host.
    std::chrono::milliseconds limit{};
    std::shared_ptr<Link> link;
    std::uint64_t generation = 0;  // of the communicator
    const char* operation = "";    // a literal
  };
  static constexpr std::chrono::milliseconds kSettled{1};

  static c10::intrusive_ptr<CallWork> make(c10::intrusive_ptr<c10d::Work> call, About about);

  void wait() override;
  void waitBlocking() override;
  void hostSynchronize() override { waitBlocking(); }
  std::chrono::milliseconds getTimeout() const override { return about_.timeout; }

  CallWork(c10::intrusive_ptr<c10d::Work> call, About about);
  ~CallWork() override { left_by_child(completion_); }

 protected:
  // TorchComms' future of a call on a device: complete when the call is enqueued, as the call's own, and like that one
  // it makes whoever uses it wait for the call, whatever stream is current here. And complete for whoever has waited,
  // although the call's own may come later, behind callbacks of other calls that wait for this one.
  void markCompleted(c10::intrusive_ptr<c10::ivalue::Future> future, std::vector<at::Tensor> outputs) override;

 private:
  using Clock = std::chrono::steady_clock;

  // What completes TorchComms' future: the call's own, or who waits, whichever is first.
  struct Completion {
    Completion(c10::intrusive_ptr<c10::ivalue::Future> to_complete, std::vector<at::Tensor> given)
        : future(std::move(to_complete)), outputs(std::move(given)) {}
    // False: somebody else has completed it, or is about to.
    bool complete(std::exception_ptr error = nullptr);

    const c10::intrusive_ptr<c10::ivalue::Future> future;
    std::vector<at::Tensor> outputs;
    std::atomic<bool> taken{false};
  };

  void watch_device();
  void call_is_over(bool failed);
  void wait_for_call(std::chrono::milliseconds timeout);
  [[noreturn]] void refuse(const char* reason) const;
  std::string on_communicator() const;  // what a message begins with
  WorkStatus status_of_failure() const;
  // The first of the library's thread and wait() sets it, and the other waits for that: when wait() returns, it is set.
  void end(WorkStatus status);

  const c10::intrusive_ptr<c10d::Work> call_;
  const About about_;
  const std::thread::id maker_ = std::this_thread::get_id();
  const Clock::time_point made_ = Clock::now();
  std::once_flag ended_;
  std::atomic<std::thread::id> ending_{};  // whose hooks are running; relaxed: asked for by that thread alone
  // Of the watch, which holds this work until then. relaxed: a number says nothing of other memory, and who misses it
  // leaves the work to the watch's next look.
  std::atomic<std::uint64_t> watched_{0};
  std::shared_ptr<Completion> completion_;  // holds events and memory of CUDA's, so a forked child leaves it
};

}  // namespace tutti::torchcomms
