#include "torchcomms/watch.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/registry.h"
#include "base/thread.h"
#include "torchcomms/group.h"

namespace py = pybind11;

namespace tutti::torchcomms {
namespace {

constexpr auto kUntilTold = std::chrono::hours(24 * 365);

}  // namespace

Watch& Watch::of_process() {
  static Watch* const instance = [] {
    auto* const made = new Watch;
    static_cast<void>(std::atexit([] { of_process().stop(); }));
    if (Py_IsInitialized() != 0) {
      // A thread that asks for the lock of an interpreter which has ended never goes on.
      const py::gil_scoped_acquire locked;
      py::module_::import("atexit").attr("register")(py::cpp_function([made] { made->stop(); }));
    }
    return made;
  }();
  return *instance;
}

std::uint64_t Watch::add(Clock::time_point first, std::chrono::milliseconds period, Look look) {
  if (forked_child()) return 0;  // it has none of the threads, and its calls are refused
  bool earlier = false;
  std::uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return 0;
    if (!thread_.joinable()) {
      thread_ = start_thread("that tells of calls nobody waits for", [this] { run(); });
    }
    number = ++added_;
    entries_.emplace(number, Entry{first, period, std::move(look)});
    earlier = first < asleep_until_;
  }
  if (earlier) changed_.notify_one();
  return number;
}

void Watch::remove(std::uint64_t number) noexcept {
  std::map<std::uint64_t, Entry>::node_type gone;  // what it holds goes without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  gone = entries_.extract(number);
}

void Watch::stop() noexcept {
  if (forked_child()) return;
  without_python([this] {
    std::thread ending;
    std::map<std::uint64_t, Entry> gone;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      ending.swap(thread_);
      gone.swap(entries_);
    }
    changed_.notify_one();
    if (ending.get_id() == std::this_thread::get_id()) return ending.detach();  // a hook ends the process
    if (ending.joinable()) ending.join();
  });
}

std::uint64_t Watch::next_due(std::uint64_t after, Clock::time_point now) const {
  const auto found = std::find_if(entries_.upper_bound(after), entries_.end(),
                                  [now](const auto& entry) { return entry.second.next <= now; });
  return found == entries_.end() ? 0 : found->first;
}

void Watch::run() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    const auto now = Clock::now();
    for (std::uint64_t number = next_due(0, now); number != 0 && !stopping_; number = next_due(number, now)) {
      {
        const Look look = entries_.at(number).look;  // a copy: it may be removed meanwhile
        lock.unlock();
        const bool done = look();
        if (done) remove(number);
      }
      lock.lock();
      const auto found = entries_.find(number);
      if (found != entries_.end()) found->second.next = Clock::now() + found->second.period;
    }
    auto next = now + kUntilTold;
    for (const auto& [number, entry] : entries_) next = std::min(next, entry.next);
    asleep_until_ = next;
    changed_.wait_until(lock, next, [&] {
      return stopping_ ||
             std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.second.next < next; });
    });
    asleep_until_ = Clock::time_point::min();
  }
}

}  // namespace tutti::torchcomms
