#include "torchcomms/window_group.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/registry.h"
#include "interpreter/without_python.h"
#include "torchcomms/inbox.h"

namespace tutti::torchcomms {

Group WindowGroup::group() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_;
}

Group WindowGroup::in_use() const {
  Group now = group();
  TORCH_CHECK(now != nullptr, "tutti: communicator '", name_, "' is gone");
  return now;
}

c10d::Backend* WindowGroup::enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (group_ != nullptr) ++uses_;
  return group_.get();
}

void WindowGroup::leave() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--uses_ == 0) unused_.notify_all();
}

void WindowGroup::end() {
  if (forked_child()) return;  // a thread of the parent's may have had the lock, or use the group for ever
  Group last;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    last = std::exchange(group_, nullptr);
    unused_.wait(lock, [this] { return uses_ == 0; });
  }
  if (last != nullptr) last->shutdown();
  fail_inboxes("its group has ended");
}

void WindowGroup::abort_if(const std::atomic<bool>& aborted) {
  // acquire: pairs with the release in abort(), which looks for this group behind it.
  if (!aborted.load(std::memory_order_acquire)) return;
  if (const Group now = group(); now != nullptr) now->abort();
  // Hooks of what waits may ask for Python's lock.
  without_python([this] { fail_inboxes("this rank has called abort()"); });
}

void WindowGroup::add(const std::shared_ptr<Inbox>& inbox) {
  std::exception_ptr failure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(inboxes_, [](const std::weak_ptr<Inbox>& one) { return one.expired(); });
    inboxes_.push_back(inbox);
    failure = failure_;
  }
  if (failure != nullptr) inbox->fail(failure);
}

std::vector<std::shared_ptr<Inbox>> WindowGroup::inboxes() const {
  std::vector<std::shared_ptr<Inbox>> all;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& one : inboxes_) {
    if (auto inbox = one.lock(); inbox != nullptr) all.push_back(std::move(inbox));
  }
  return all;
}

std::exception_ptr WindowGroup::leave_inboxes() {
  Deadline deadline = Deadline::after(std::chrono::seconds(1));
  const auto all = inboxes();
  for (const auto& inbox : all) inbox->say_gone();
  std::exception_ptr first;
  for (const auto& inbox : all) {
    const std::exception_ptr raised = inbox->await_answers(deadline);
    if (first == nullptr) first = raised;
  }
  return first;
}

void WindowGroup::fail_inboxes(const char* reason) {
  std::exception_ptr failure;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ == nullptr) {
      failure_ = std::make_exception_ptr(c10::DistBackendError(
          {__func__, __FILE__, __LINE__}, "tutti: window of communicator '" + name_ + "': " + reason));
    }
    failure = failure_;
  }
  for (const auto& inbox : inboxes()) inbox->fail(failure);
}

std::vector<std::int64_t> gathered_words(c10d::Backend& group, const std::vector<std::int64_t>& mine,
                                         std::chrono::milliseconds timeout) {
  at::Tensor words = at::empty({static_cast<std::int64_t>(mine.size())}, at::kLong);
  std::copy(mine.begin(), mine.end(), words.data_ptr<std::int64_t>());
  at::Tensor all = at::empty({group.getSize() * words.numel()}, at::kLong);
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  options.asyncOp = false;
  group._allgather_base(all, words, options)->wait();
  const auto* const said = all.data_ptr<std::int64_t>();
  return {said, said + all.numel()};
}

}  // namespace tutti::torchcomms
