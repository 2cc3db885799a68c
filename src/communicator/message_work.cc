#include "communicator/message_work.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "communicator/call_check.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kSliceNs = 500'000'000;

}  // namespace

MessageWork::MessageWork(MessageOwner& owner, std::uint64_t entry, std::chrono::milliseconds timeout,
                         std::shared_ptr<void> keep_alive)
    : owner_(owner),
      group_(owner.alive()),
      deadline_(Deadline::after(timeout)),
      start_ns_(now_ns()),
      entry_(entry),
      keep_alive_(std::move(keep_alive)) {
  deadline_.expired();  // starts the clock: an asynchronous call's time counts from its start
  op_.on_done = [this](MessageOp&) { complete(); };
}

void MessageWork::complete() noexcept {
  std::exception_ptr error;
  if (op_.outcome.ok()) {
    owner_.message_done(op_, entry_, now_ns() - start_ns_);
  } else {
    error = owner_.message_failed(op_.outcome, op_, deadline_.timeout());
  }
  keep_alive_.reset();
  settle(std::move(error), op_.source);
  self_ = shared_from_this();
  Afterwards::add(*this);
}

void MessageWork::run_afterwards() noexcept {
  const auto self = std::move(self_);
  run_callbacks();
}

void MessageWork::wait(std::chrono::milliseconds timeout) {
  check_call_timeout("wait", timeout);
  const auto self = shared_from_this();
  Deadline limit = Deadline::after(timeout);
  for (bool goes_on = false; !op_.done(); goes_on = true) {
    throw_if_forked();
    // For a slice: a group whose last reference is dropped meanwhile ends then, perhaps on this thread, and with it the
    // operation.
    const std::shared_ptr<void> group = group_.lock();
    if (group == nullptr) break;
    std::int64_t left_ns = std::min(limit.remaining_ns(), kSliceNs);
    {
      const std::lock_guard lock(deadline_mutex_);
      left_ns = std::min(left_ns, deadline_.remaining_ns());
    }
    // Waiting drives the port, which is faster than being told by the message thread.
    Deadline slice = Deadline::after(std::chrono::milliseconds(std::max<std::int64_t>(1, left_ns / 1'000'000)));
    owner_.port().wait(op_, slice, goes_on);
    if (op_.done()) break;
    throw_if_forked();  // by a handler of a signal
    expire_if_late();
    if (!op_.done() && limit.expired()) throw_error(ErrorKind::kTimeout, describe_wait_timeout(timeout));
  }
  Afterwards::run_here();  // a callback on this thread that waits may wait for what a callback of this message does
  // The port marks the operation done just before complete() runs, perhaps on another thread.
  WorkState::wait(std::chrono::milliseconds::max());
}

bool MessageWork::late() noexcept {
  if (op_.done()) return false;
  const std::lock_guard lock(deadline_mutex_);
  return deadline_.expired();
}

void MessageWork::expire_if_late() noexcept {
  if (late()) owner_.port().fail({Status::kTimeout, op_.peer});
}

OutstandingMessages::Works OutstandingMessages::take_released() noexcept {
  Works taken;
  for (auto at = works_.begin(); at != works_.end();) {
    const auto work = at++;
    if ((*work)->released()) taken.splice(taken.end(), works_, work);
  }
  return taken;
}

void OutstandingMessages::add(std::shared_ptr<MessageWork> work) {
  Works released, added;
  added.push_back(std::move(work));
  const std::lock_guard lock(mutex_);
  released = take_released();
  works_.splice(works_.end(), added);
}

bool OutstandingMessages::empty() noexcept {
  Works released;
  const std::lock_guard lock(mutex_);
  released = take_released();
  return works_.empty();
}

// The first that is late ends them all.
void OutstandingMessages::expire_late() noexcept {
  std::shared_ptr<MessageWork> late;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(works_, [](const auto& work) { return work->late(); });
    if (found != works_.end()) late = *found;
  }
  if (late != nullptr) late->expire_if_late();
}

}  // namespace tutti
