// A mutex whose turn can be waited for no longer than a time. std::timed_mutex is one, but g++ 12's thread sanitizer
// does not see it.
//
// Lockable as std::mutex is. Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tutti {

class TurnLock {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    free_.wait(lock, [this] { return !held_; });
    held_ = true;
  }
  bool try_lock() {
    const std::lock_guard lock(mutex_);
    if (held_) return false;
    return held_ = true;
  }
  bool try_lock_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    if (!free_.wait_for(lock, time, [this] { return !held_; })) return false;
    return held_ = true;
  }
  void unlock() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    free_.notify_one();
  }

 private:
  std::mutex mutex_;  // guards held_; a leaf
  std::condition_variable free_;
  bool held_ = false;
};

}  // namespace tutti
