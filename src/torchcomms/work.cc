#include "torchcomms/work.h"

#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <utility>

#include "aten/cuda_streams.h"
#include "base/registry.h"
#include "torchcomms/event.h"
#include "torchcomms/watch.h"
#include "tutti/cuda/capture.h"

namespace tutti::torchcomms {
namespace {

// How long it takes until a call's end on a GPU is noticed that nobody waits for.
constexpr std::chrono::milliseconds kLookAtDevice(10);

}  // namespace

bool capturing(c10::Device gpu) {
  return cuda_is_capturing(gpu.index(), face::current_cuda_stream(gpu).native_handle());
}

std::uint64_t capture_of(const c10::Stream& stream) {
  return cuda_capture_of(stream.device_index(), stream.native_handle());
}

CallWork::CallWork(c10::intrusive_ptr<c10d::Work> call, About about)
    : call_(std::move(call)), about_(std::move(about)) {
  setStatus(WorkStatus::INPROGRESS);
}

c10::intrusive_ptr<CallWork> CallWork::make(c10::intrusive_ptr<c10d::Work> call, About about) {
  auto work = c10::make_intrusive<CallWork>(std::move(call), std::move(about));
  if (work->about_.device.has_value()) {
    // A future on CUDA tensors is complete once the call is enqueued, which says nothing.
    if (!capturing(*work->about_.device)) work->watch_device();
  } else {
    work->call_->getFuture()->addCallback(
        [work](c10::ivalue::Future& future) { work->call_is_over(future.hasError()); });
  }
  return work;
}

void CallWork::watch_device() {
  auto self = c10::intrusive_ptr<CallWork>::unsafe_reclaim_from_nonowning(this);
  const auto look = [self = std::move(self)] {
    if (self->status() != WorkStatus::INPROGRESS) return true;
    try {
      // A program captures when it likes. And what destroys an event here makes this thread's own device current again,
      // which for a new thread is the first GPU and would get a context: its own is one that calls were made on.
      thread_local const bool begun = (cuda_begin_thread(self->about_.device->index()), true);
      static_cast<void>(begun);
      const c10::DeviceGuard on_device(*self->about_.device);
      if (!self->call_->isCompleted()) return false;
      self->end(self->call_->isSuccess() ? WorkStatus::COMPLETED : self->status_of_failure());
    } catch (const std::exception&) {  // CUDA has failed, as whoever waits will hear
      self->end(WorkStatus::ERROR);
    }
    return true;
  };
  watched_.store(Watch::of_process().add(made_ + kLookAtDevice, kLookAtDevice, look), std::memory_order_relaxed);
}

void CallWork::call_is_over(bool failed) {
  if (status() != WorkStatus::INPROGRESS) return;  // somebody has waited
  const WorkStatus status = failed ? status_of_failure() : WorkStatus::COMPLETED;
  const auto settled = made_ + kSettled;
  if (std::this_thread::get_id() == maker_) return end(status);
  // With the interpreter: a hook that asks for its lock now never goes on. Who waits still ends it.
  if (Watch::of_process().has_stopped()) return;
  if (Clock::now() >= settled) return end(status);
  auto self = c10::intrusive_ptr<CallWork>::unsafe_reclaim_from_nonowning(this);
  const auto look = [self = std::move(self), status] {
    self->end(status);
    return true;
  };
  watched_.store(Watch::of_process().add(settled, kSettled, look), std::memory_order_relaxed);
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
  // What the watch holds is let go now, not at its next look: the call's tensors are among it.
  if (const auto number = watched_.exchange(0, std::memory_order_relaxed)) Watch::of_process().remove(number);
}

CallWork::WorkStatus CallWork::status_of_failure() const {
  // Of a signal's wait the group knows nothing: it goes on.
  if (const auto* event = dynamic_cast<const Event*>(call_.get()); event != nullptr && event->late()) {
    return WorkStatus::TIMEDOUT;
  }
  return about_.link->timed_out(about_.generation) ? WorkStatus::TIMEDOUT : WorkStatus::ERROR;
}

void CallWork::wait_for_call(std::chrono::milliseconds timeout) {
  try {
    call_->wait(timeout);
  } catch (...) {
    if (forked_child()) throw;  // the state is the parent's, and so are the locks of what waits for it
    // A wait may end before the call does: it was late.
    end(call_->isCompleted() ? status_of_failure() : WorkStatus::TIMEDOUT);
    about_.link->look_for_failure();
    try {
      throw;
    } catch (const c10::ValueError& wrong) {  // of arguments, found when the call had its turn
      refuse(wrong.what_without_backtrace());
    } catch (const c10::TypeError& wrong) {
      refuse(wrong.what_without_backtrace());
    } catch (const c10::DistBackendError& late) {
      if (!is_of_wait(*call_, timeout)) throw;
      C10_THROW_ERROR(DistBackendError, on_communicator() + late.what_without_backtrace());
    }
  }
  end(WorkStatus::COMPLETED);
}

// RuntimeError, as the call itself raises.
void CallWork::refuse(const char* reason) const { C10_THROW_ERROR(Error, on_communicator() + reason); }

std::string CallWork::on_communicator() const {
  return std::string("tutti: ") + about_.operation + about_.link->on_communicator() + ": ";
}

void CallWork::wait() {
  runWaitPreHooks();
  wait_for_call(about_.limit.count() > 0 && !about_.device.has_value() ? about_.limit : kNoTimeout);
  // TorchComms completes its future now if it is not complete, and twice is an error.
  if (completion_ != nullptr && !completion_->complete()) {
    while (!completion_->future->completed()) std::this_thread::yield();  // a moment: callbacks come after that
  }
  runWaitPostHooks();
}

void CallWork::waitBlocking() { wait_for_call(about_.limit.count() > 0 ? about_.limit : kAsLongAsTheCall); }

bool CallWork::Completion::complete(std::exception_ptr error) {
  // relaxed: it decides who is first, who alone touches the rest; what follows is published by the future.
  if (taken.exchange(true, std::memory_order_relaxed)) return false;
  if (error != nullptr) {
    future->setError(error);
  } else {
    future->markCompleted(c10::IValue(std::move(outputs)));
  }
  return true;
}

void CallWork::markCompleted(c10::intrusive_ptr<c10::ivalue::Future> future, std::vector<at::Tensor> outputs) {
  completion_ = std::make_shared<Completion>(std::move(future), std::move(outputs));
  call_->getFuture()->addCallback([completion = completion_](c10::ivalue::Future& call) {
    completion->complete(call.hasError() ? call.exception_ptr() : nullptr);
  });
}

}  // namespace tutti::torchcomms
