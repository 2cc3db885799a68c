// A forked child for tests: runs a function, ends with its result as exit code, and never outlives a minute.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "base/unique_fd.h"
#include "support/lost_wakeups.h"

namespace tutti::test {

// A gate between two processes: one waits until the other opens it or dies.
class Gate {
 public:
  Gate() {
    std::array<int, 2> ends{-1, -1};
    if (::pipe(ends.data()) == 0) {
      read_end_ = UniqueFd(ends[0]);
      write_end_ = UniqueFd(ends[1]);
    }
  }
  // False if the other side died first.
  bool wait() {
    write_end_.reset();
    char byte = 0;
    return ::read(read_end_.get(), &byte, 1) == 1;
  }
  void open() {
    const char byte = 1;
    [[maybe_unused]] const ssize_t written = ::write(write_end_.get(), &byte, 1);
  }

 private:
  UniqueFd read_end_;
  UniqueFd write_end_;
};

class ChildProcess {
 public:
  // `body` returns the exit code. It must not use GoogleTest. The child that has lost a wake-up ends with kLostWakeups.
  template <typename Body>
  explicit ChildProcess(Body&& body) {
    const std::uint64_t before = lost_wakeups();
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::alarm(60);  // the watchdog: a stuck child ends by a signal, which join() reports
    const int code = std::forward<Body>(body)();
    ::_exit(code_unless_lost(code, before));
  }
  // A test that failed before it joined leaves no child behind.
  ~ChildProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      join();
    }
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }

  // The exit code; 1000 + the signal if a signal ended it.
  int join() {
    int status = 0;
    const pid_t pid = std::exchange(pid_, -1);
    if (pid <= 0 || ::waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

template <typename Body>
int run_in_child(Body&& body) {
  return ChildProcess(std::forward<Body>(body)).join();
}

}  // namespace tutti::test
