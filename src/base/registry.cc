// The process registry, driven by atexit() and pthread_atfork().
#include "base/registry.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "tutti/error.h"

namespace tutti {

ProcessRegistry& ProcessRegistry::instance() {
  static ProcessRegistry& registry = *new ProcessRegistry;
  return registry;
}

ProcessRegistry::ProcessRegistry() {
  const int error_number = ::pthread_atfork([] { instance().before_fork(); }, [] { instance().after_fork_in_parent(); },
                                            [] { instance().after_fork_in_child(); });
  if (error_number != 0) throw_system_error(ErrorKind::kExhausted, "pthread_atfork", error_number);
  if (std::atexit([] { instance().run_exit_hooks(); }) != 0) {
    throw_error(ErrorKind::kExhausted, "atexit: no room for another handler");
  }
}

void* ProcessRegistry::member(RegistryMember which, void* (*make)()) {
  std::atomic<void*>& slot = members_[static_cast<std::size_t>(which)];
  // Acquire: sees the member as its maker left it; pairs with the release below.
  if (void* const made = slot.load(std::memory_order_acquire)) return made;
  const std::lock_guard lock(members_mutex_);
  void* made = slot.load(std::memory_order_relaxed);  // relaxed: ordered by the lock
  if (made == nullptr) {
    made = make();
    slot.store(made, std::memory_order_release);  // release: publishes the member to the acquire above
  }
  return made;
}

void ProcessRegistry::run_exit_hooks() noexcept {
  if (forked_child_.load(std::memory_order_relaxed)) return;  // pairs with nothing: see the member's comment
  const std::lock_guard lock(mutex_);
  for (ExitHook* hook : exit_hooks_) {
    // Moved out: a hook that registers again at exit would otherwise run twice.
    const std::function<void()> callback = std::exchange(hook->callback_, nullptr);
    if (callback) callback();
  }
  exit_hooks_.clear();
}

void ProcessRegistry::before_fork() noexcept {
  members_mutex_.lock();
  mutex_.lock();
  for (ForkHandler* handler : fork_handlers_) handler->before_fork();
}

void ProcessRegistry::after_fork_in_parent() noexcept {
  std::for_each(fork_handlers_.rbegin(), fork_handlers_.rend(), [](ForkHandler* h) { h->after_fork_in_parent(); });
  mutex_.unlock();
  members_mutex_.unlock();
}

void ProcessRegistry::after_fork_in_child() noexcept {
  // Relaxed: the child has one thread.
  forked_child_.store(true, std::memory_order_relaxed);
  std::for_each(fork_handlers_.rbegin(), fork_handlers_.rend(), [](ForkHandler* h) { h->after_fork_in_child(); });
  mutex_.unlock();
  members_mutex_.unlock();
}

ExitHook::ExitHook(std::function<void()> callback) : callback_(std::move(callback)) {
  ProcessRegistry& registry = ProcessRegistry::instance();
  const std::lock_guard lock(registry.mutex_);
  registry.exit_hooks_.push_back(this);
}

ExitHook::~ExitHook() {
  ProcessRegistry& registry = ProcessRegistry::instance();
  const std::lock_guard lock(registry.mutex_);
  std::erase(registry.exit_hooks_, this);
}

ForkHook::ForkHook(ForkHandler& handler) : handler_(handler) {
  ProcessRegistry& registry = ProcessRegistry::instance();
  const std::lock_guard lock(registry.mutex_);
  registry.fork_handlers_.push_back(&handler_);
}

ForkHook::~ForkHook() {
  ProcessRegistry& registry = ProcessRegistry::instance();
  const std::lock_guard lock(registry.mutex_);
  std::erase(registry.fork_handlers_, &handler_);
}

bool forked_child() noexcept {
  // Relaxed: see the member's comment.
  return ProcessRegistry::instance().forked_child_.load(std::memory_order_relaxed);
}

}  // namespace tutti
