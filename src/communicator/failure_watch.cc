#include "communicator/failure_watch.h"

#include <cstdlib>

#include "base/registry.h"
#include "base/thread.h"

namespace tutti {

FailureWatch& FailureWatch::of_process() {
  static FailureWatch* const instance = [] {
    static_cast<void>(std::atexit([] { of_process().stop(); }));
    return new FailureWatch;
  }();
  return *instance;
}

// No look runs once this has returned, and none is added.
void FailureWatch::stop() noexcept {
  if (forked_child()) return;
  std::thread ending;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ending.swap(thread_);
  }
  stop_.notify_all();
  if (ending.joinable()) ending.join();
}

FailureWatch::~FailureWatch() { stop(); }

std::uint64_t FailureWatch::add(const Logger& logger, bool end, Look look) {
  if (forked_child()) return 0;
  const std::lock_guard lock(mutex_);
  if (stopping_) return 0;  // the process ends
  if (!thread_.joinable()) {
    thread_ = start_thread("that watches for failures on GPUs", [this] { run(); });
  }
  entries_.emplace(++added_, Entry{logger, end, std::move(look)});
  return added_;
}

void FailureWatch::remove(std::uint64_t number) noexcept {
  if (forked_child()) return;
  const std::lock_guard lock(mutex_);
  entries_.erase(number);
}

void FailureWatch::run() noexcept {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    try {
      look_at_all();
    } catch (const std::bad_alloc&) {  // for what is to be said: the next look finds it again
    }
  }
}

// Under mutex_.
void FailureWatch::look_at_all() {
  std::erase_if(entries_, [](const auto& numbered) {
    const Entry& entry = numbered.second;
    const std::optional<Error> failure = entry.look();
    if (!failure) return false;
    if (failure->kind() == ErrorKind::kAborted) return true;  // whoever aborts knows it
    entry.logger.error(std::string(failure->what()) + "; what its calls have computed is undefined" +
                       (entry.end ? "; TUTTI_CUDA_WATCHDOG=end ends this process" : ""));
    if (entry.end) std::abort();
    return true;
  });
}

}  // namespace tutti
