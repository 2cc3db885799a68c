#include "torchcomms/watch.h"

#include <torch/csrc/utils/pybind.h>

#include <cstdlib>
#include <utility>

#include "aten/signals.h"
#include "base/registry.h"
#include "base/thread.h"
#include "interpreter/with_python.h"
#include "interpreter/without_python.h"

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
      const WithPython locked;
      py::module_::import("atexit").attr("register")(py::cpp_function([made] { made->stop(); }));
      face::hear_of_pythons_end();
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
    const auto due = due_.emplace(first, number).first;
    try {
      entries_.emplace(number, Entry{first, period, std::move(look)});
    } catch (...) {
      due_.erase(due);
      throw;
    }
    earlier = first < asleep_until_;
  }
  if (earlier) changed_.notify_one();
  return number;
}

void Watch::remove(std::uint64_t number) noexcept {
  // Where a thread of the parent's may have had the lock.
  if (forked_child()) return;
  std::map<std::uint64_t, Entry>::node_type gone;  // what it holds goes without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  gone = entries_.extract(number);
  if (!gone.empty()) due_.erase({gone.mapped().next, number});  // one that looks now is not there
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
      due_.clear();
    }
    changed_.notify_one();
    if (ending.get_id() == std::this_thread::get_id()) return ending.detach();  // a hook ends the process
    if (ending.joinable()) ending.join();
  });
}

bool Watch::has_stopped() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return stopping_;
}

void Watch::put_back(Due::node_type due, Look& look) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(due.value().second);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.look = std::move(look);
  due.value().first = entry.next = Clock::now() + entry.period;
  due_.insert(std::move(due));
}

// Takes no memory: each look goes back to where it was taken from.
void Watch::run() noexcept {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    const auto now = Clock::now();  // those due by now look once
    while (!stopping_ && !due_.empty() && due_.begin()->first <= now) {
      Due::node_type due = due_.extract(due_.begin());
      const std::uint64_t number = due.value().second;
      Look look = std::move(entries_.at(number).look);
      lock.unlock();
      if (look()) remove(number);
      put_back(std::move(due), look);
      look = nullptr;  // what it holds goes without the lock, where it was removed meanwhile
      lock.lock();
    }
    asleep_until_ = due_.empty() ? now + kUntilTold : due_.begin()->first;
    changed_.wait_until(lock, asleep_until_,
                        [this] { return stopping_ || (!due_.empty() && due_.begin()->first < asleep_until_); });
    asleep_until_ = Clock::time_point::min();
  }
}

}  // namespace tutti::torchcomms
