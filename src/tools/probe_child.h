// A forked child that runs one function, and the memory through which it reports.
//
// Ownership: the Child ends and reaps its process when destroyed. Thread rule: one thread.
// A forked child of a process that might have had threads may only make system calls: no allocation, no locks.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/mapping.h"

namespace tutti {

inline constexpr std::int64_t kProbeNs = 5'000'000'000;  // no step of a probe may take longer

// What the processes of one probe share. Each word has one writer at a time; `stage` hands over.
struct ProbePage {
  std::atomic<std::uint32_t> stage{0};  // release: publishes the fields below; pairs with await_stage's acquire
  std::int32_t error_number = 0;
};

// Publishes the page's fields and wakes who waits for `stage`.
void reach_stage(ProbePage& page, std::uint32_t stage) noexcept;

// Waits until `stage` has been reached, at most kProbeNs; false if it has not.
bool await_stage(ProbePage& page, std::uint32_t stage) noexcept;

class Child {
 public:
  // Forks; the child runs `body` and exits. pid() is -1 if fork failed.
  explicit Child(const std::function<void()>& body) noexcept;
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const noexcept { return pid_; }

 private:
  pid_t pid_ = -1;
};

// Memory that children share with their parent; holds one ProbePage.
class ProbeMemory {
 public:
  ProbeMemory();
  ProbePage& page() noexcept { return *page_; }

  static constexpr std::size_t kPageBytes = 4096;

 private:
  UniqueFd fd_;
  Mapping mapping_;
  ProbePage* page_;
};

}  // namespace tutti
