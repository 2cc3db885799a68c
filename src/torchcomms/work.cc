#include "torchcomms/work.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <string_view>

namespace tutti::torchcomms {
namespace {

using Status = ::torch::comms::TorchWork::WorkStatus;

// For waits on the host that have no limit of their own: the call has one, and ends by it. c10d's works take a limit to
// mean the host.
constexpr std::chrono::milliseconds kAsLongAsTheCall = std::chrono::hours(24 * 365);

}  // namespace

CallWork::CallWork(c10::intrusive_ptr<c10d::Work> call, bool on_device, std::chrono::milliseconds timeout,
                   std::chrono::milliseconds limit, std::function<void()> failed)
    : call_(std::move(call)), on_device_(on_device), timeout_(timeout), limit_(limit), failed_(std::move(failed)) {
  setStatus(WorkStatus::INPROGRESS);
}

c10::intrusive_ptr<CallWork> CallWork::make(c10::intrusive_ptr<c10d::Work> call, bool on_device,
                                            std::chrono::milliseconds timeout, std::chrono::milliseconds limit,
                                            std::function<void()> failed) {
  auto work = c10::make_intrusive<CallWork>(std::move(call), on_device, timeout, limit, std::move(failed));
  // A future on CUDA tensors is complete once the call is enqueued, which says nothing.
  if (!on_device) {
    work->call_->getFuture()->addCallback(
        [work](c10::ivalue::Future& future) { work->end(future.hasError() ? Status::ERROR : Status::COMPLETED); });
  }
  return work;
}

std::chrono::milliseconds CallWork::getTimeout() const {
  return timeout_.count() > 0 ? timeout_ : TorchWork::getTimeout();
}

// Once, and over when this returns; but a hook may wait for this very work.
void CallWork::end(WorkStatus status) {
  if (ending_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return;
  std::call_once(ended_, [&] {
    ending_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    try {
      setStatus(status);
    } catch (const std::exception& error) {
      // The state is set; only what a hook has thrown is left, and this may be a thread of the library.
      TORCH_WARN("tutti: a hook of a finished call has failed: ", error.what());
    }
    ending_.store({}, std::memory_order_relaxed);
  });
}

void CallWork::wait_for_call(std::chrono::milliseconds timeout) {
  try {
    call_->wait(timeout);
  } catch (...) {
    const bool over = on_device_ || call_->isCompleted();
    end(over ? WorkStatus::ERROR : WorkStatus::TIMEDOUT);
    failed_();
    throw;
  }
  end(WorkStatus::COMPLETED);
}

void CallWork::wait() {
  runWaitPreHooks();
  wait_for_call(limit_.count() > 0 ? limit_ : kNoTimeout);
  runWaitPostHooks();
}

void CallWork::waitBlocking() { wait_for_call(limit_.count() > 0 ? limit_ : kAsLongAsTheCall); }

}  // namespace tutti::torchcomms
