// Looks for failures that nobody asks for. What fails on a GPU is written to pinned memory and raised by the next call;
// a program that makes none, but reads a result and saves it, would never hear of it. One thread a process looks at all
// communicators on GPUs, says what it finds on standard error, once each, and ends the process if it is told to.
// A look may end something itself: what waits for a rank that is lost (StreamCommunicator::look()).
//
// Ownership: whoever adds a look removes it before what it looks at goes. Thread rule: any thread. Lock: mutex_ guards
// the members below it and is held while looks run: they take leaves only, and wait for nothing but the end of a thread
// that has done its work. A forked child has no watch: there, add() and remove() do nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/log.h"
#include "tutti/error.h"

namespace tutti {

class FailureWatch {
 public:
  // What is called every kPeriod until it gives a failure, by nobody more than once at a time.
  using Look = std::function<std::optional<Error>()>;
  static constexpr std::chrono::milliseconds kPeriod{100};

  // The process's, never destroyed: communicators may end during static destruction. It stops at exit, before CUDA
  // takes back what the looks read: the first call comes after a communicator has been made, hence after CUDA's own
  // handler.
  static FailureWatch& of_process();

  FailureWatch() = default;
  ~FailureWatch();
  FailureWatch(const FailureWatch&) = delete;
  FailureWatch& operator=(const FailureWatch&) = delete;

  // `end`: a failure that is no abort of this rank's own ends the process, by SIGABRT. The first one starts the thread.
  std::uint64_t add(const Logger& logger, bool end, Look look);
  void remove(std::uint64_t number) noexcept;

 private:
  struct Entry {
    Logger logger;
    bool end = false;
    Look look;
  };
  void stop() noexcept;
  void run() noexcept;
  void look_at_all();

  std::mutex mutex_;
  std::condition_variable stop_;
  std::map<std::uint64_t, Entry> entries_;  // that have not failed
  std::uint64_t added_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti
