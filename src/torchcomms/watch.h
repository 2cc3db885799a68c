// Tells of what has ended without anybody waiting for it: calls on GPUs, and failures of communicators.
//
// One thread a process asks again and again. FailureWatch (src/communicator) only reports failures and lets nothing
// wait while it looks; here a look may run functions of the program's (hooks), which may wait and take Python's global
// lock. So looks run without a lock, one after another, and the thread ends before the interpreter does.
//
// Ownership: what a look holds lives until it is removed or done. Thread rule: any thread. Lock: mutex_, a leaf.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace tutti::torchcomms {

class Watch {
 public:
  using Clock = std::chrono::steady_clock;
  // True: it is done, and goes. Must not throw.
  using Look = std::function<bool()>;

  // The process's, never destroyed. It stops when Python's interpreter ends, else at exit.
  static Watch& of_process();

  Watch() = default;
  ~Watch() { stop(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Looks at `first`, and every `period` after that. Zero: the watch has stopped, and nobody looks.
  std::uint64_t add(Clock::time_point first, std::chrono::milliseconds period, Look look);
  // A look that runs goes on. Zero is nobody's.
  void remove(std::uint64_t number) noexcept;

  // No look runs once this has returned.
  void stop() noexcept;
  bool has_stopped() noexcept;

 private:
  struct Entry {
    Clock::time_point next;
    std::chrono::milliseconds period;
    Look look;
  };
  using Due = std::set<std::pair<Clock::time_point, std::uint64_t>>;
  void run() noexcept;
  // Of one that has looked, and is due again later if it has not been removed.
  void put_back(Due::node_type due, Look& look) noexcept;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<std::uint64_t, Entry> entries_;
  Due due_;  // all but the one that looks now, the next one first
  std::uint64_t added_ = 0;
  Clock::time_point asleep_until_ = Clock::time_point::min();  // min: awake
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::torchcomms
