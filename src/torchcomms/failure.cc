// What a communicator does when a call of it has failed, or it is aborted.
//
// Whoever learns of it first runs the abort hooks, once for each group that the communicator makes: a thread whose call
// or wait has failed, before that raises; abort(), before what waits is ended, so that hooks see it; or the watch, for
// a program that asks for nothing.
#include <cstdlib>
#include <new>

#include "aten/failing_group.h"
#include "base/log.h"
#include "base/registry.h"
#include "interpreter/without_python.h"
#include "torchcomms/backend.h"

namespace tutti::torchcomms {

TorchCommTutti* Link::owner() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return owner_;
}

bool Link::look_for_failure() {
  if (forked_child()) return false;  // where a thread of the parent's may have had the lock
  bool there = false;
  without_python([&] {
    const std::lock_guard<std::recursive_mutex> lock(hooks_);
    TorchCommTutti* const communicator = owner();
    there = communicator != nullptr;
    if (there) communicator->run_hooks_of_failure();
  });
  return there;
}

bool Link::timed_out(std::uint64_t number) const {
  if (forked_child()) return false;  // as above
  const std::lock_guard<std::mutex> lock(mutex_);
  return owner_ != nullptr && owner_->failure_of(number) == c10d::ErrorType::TIMEOUT;
}

std::string Link::on_communicator() const {
  if (forked_child()) return "";  // as above
  const std::lock_guard<std::mutex> lock(mutex_);
  return owner_ != nullptr ? " on communicator '" + std::string(owner_->getCommName()) + "'" : "";
}

void Link::end() {
  if (forked_child()) {  // as above; there is no other thread
    owner_ = nullptr;
    return;
  }
  without_python([this] {
    const std::lock_guard<std::recursive_mutex> running(hooks_);
    const std::lock_guard<std::mutex> lock(mutex_);
    owner_ = nullptr;
  });
}

namespace {

// Where one group was late, that is why the others have failed.
bool explains(c10d::ErrorType error, c10d::ErrorType other) {
  return error != c10d::ErrorType::SUCCESS && (other == c10d::ErrorType::SUCCESS || error == c10d::ErrorType::TIMEOUT);
}

}  // namespace

c10d::ErrorType TorchCommTutti::failure_of(std::uint64_t number) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return number == generation_ ? failure() : c10d::ErrorType::SUCCESS;
}

// mutex_ is held. Takes no reference to a group: this may be a thread of the group's, which must not be its last owner.
template <class See>
void TorchCommTutti::each_of_windows(const See& see) const {
  const auto look_at = [&see](WindowGroup& of) {
    const WindowGroup::Use windows(of);
    if (windows) see(*windows);
  };
  if (window_group_ != nullptr) look_at(*window_group_);
  for (const auto& of_gpus : gpu_window_groups_) look_at(*of_gpus);
}

// As above.
c10d::ErrorType TorchCommTutti::failure() const {
  auto error = c10d::ErrorType::SUCCESS;
  if (finalized_ || meets_) return error;
  const auto add = [&error](c10d::Backend& group) {
    if (const auto of = group.getError(); explains(of, error)) error = of;
  };
  if (group_ != nullptr) add(*group_);
  each_of_windows(add);
  return error;
}

bool TorchCommTutti::isAborted() const {
  // To a forked child the parent's group is lost. Before any lock: a thread of the parent's may have had it.
  if (forked_child() || aborted_.load(std::memory_order_acquire)) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure() != c10d::ErrorType::SUCCESS;
}

void TorchCommTutti::abort() {
  if (forked_child()) return;  // the group and its hooks are the parent's
  Group group;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_ == nullptr) return;
    group = group_;
    aborted_.store(true, std::memory_order_release);  // before the lock goes: next_window() looks under it
  }
  without_python([this] {
    const std::lock_guard<std::recursive_mutex> lock(link_->hooks());
    run_hooks();
  });
  if (forked_child()) return;  // by a hook
  std::vector<std::shared_ptr<WindowGroup>> of_windows;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    of_windows = gpu_window_groups_;
    if (window_group_ != nullptr) of_windows.push_back(window_group_);
  }
  group->abort();
  for (const auto& windows : of_windows) windows->abort_if(aborted_);
}

// The hooks' lock is held.
void TorchCommTutti::run_hooks_of_failure() {
  int rank = 0;
  bool late = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto error = failure();
    if (error == c10d::ErrorType::SUCCESS) return;
    rank = group_->getRank();
    late = error == c10d::ErrorType::TIMEOUT;
  }
  run_hooks();
  if (forked_child()) return;  // by a hook
  end_with_windows();
  if (!failure_aborts_.load(std::memory_order_relaxed) || aborted_.load(std::memory_order_acquire)) return;
  Logger(LogLevel::kError, rank)
      .error("communicator '" + name_ + "' has failed" + (late ? " since a call was late" : "") +
             "; the hint tutti.abort_process ends this process");
  std::abort();
}

// The hooks' lock is held, so that no other thread replaces the group; a hook of this one may have. Where a group of
// windows has failed alone, the communicator's own ends with it: its calls raise, and the other ranks hear of it.
void TorchCommTutti::end_with_windows() {
  c10d::Backend* own = nullptr;
  std::string reason;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_->getError() != c10d::ErrorType::SUCCESS) return;
    auto error = c10d::ErrorType::SUCCESS;
    each_of_windows([&](c10d::Backend& windows) {
      const auto of = windows.getError();
      if (!explains(of, error)) return;
      error = of;
      own = group_.get();
      try {
        reason = "a group of its windows has failed: ";
        reason += dynamic_cast<face::FailingGroup&>(windows).failure().value().what();
      } catch (const std::bad_alloc&) {  // then it says less
      }
    });
  }
  if (own != nullptr) dynamic_cast<face::FailingGroup&>(*own).abort_because(reason);
}

void TorchCommTutti::run_hooks() {
  if (std::exchange(hooks_have_run_, true)) return;
  runAbortHooks();
}

void TorchCommTutti::registerAbortHook(std::int64_t number, comms::AbortHook hook) {
  refuse_in_child("register_abort_hook");
  without_python([&] {
    const std::lock_guard<std::recursive_mutex> lock(link_->hooks());
    comms::TorchCommBackend::registerAbortHook(number, std::move(hook));
  });
}

void TorchCommTutti::unregisterAbortHook(std::int64_t number) {
  if (forked_child()) return;  // hooks run no more there
  // A function of Python's goes with its lock, hence not with the hooks'.
  decltype(abortHooks_)::node_type hook;
  without_python([&] {
    const std::lock_guard<std::recursive_mutex> lock(link_->hooks());
    hook = abortHooks_.extract(number);
  });
}

}  // namespace tutti::torchcomms
