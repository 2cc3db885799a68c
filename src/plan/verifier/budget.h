// What a proof may cost, and a count of what it has cost: steps, and bytes of what it keeps.
//
// A step is an access to a unit of a chunk, one event or page that a clock is compared or joined with, one turn of a
// thread block: some ten nanoseconds. Bytes are counted where memory grows with the plan: cells, accesses on record,
// values, clocks, what was signalled and not taken.
//
// A proof may take seconds. Every kAskSteps of it, a few milliseconds, the handlers of signals that have come run, and
// one that raises ends it (base/interruption.h).
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tutti::plan {

struct ProofLimits {
  std::int64_t steps = std::int64_t{1} << 30;  // of all executions together
  std::int64_t bytes = std::int64_t{4} << 30;  // of one
};

class Budget {
 public:
  explicit Budget(const ProofLimits& limits)
      : limits_(limits), steps_left_(limits.steps), next_look_(look_after(limits.steps)) {}

  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // These throw Unsupported past the limits, and the first one Aborted where a handler of a signal has raised.
  void spend(std::size_t steps) {
    steps_left_ -= static_cast<std::int64_t>(steps);
    if (steps_left_ < next_look_) look();
  }
  void hold(std::size_t bytes) {
    held_ += static_cast<std::int64_t>(bytes);
    if (held_ > limits_.bytes) refuse_bytes();
  }
  void release(std::size_t bytes) noexcept { held_ -= static_cast<std::int64_t>(bytes); }

  // list.push_back(value), counted as far as the list's memory grows.
  template <typename T>
  void append(std::vector<T>& list, T value) {
    if (list.size() == list.capacity()) {
      const std::size_t grown = list.empty() ? 1 : 2 * list.size();
      hold((grown - list.capacity()) * sizeof(T));
      list.reserve(grown);
    }
    list.push_back(std::move(value));
  }
  template <typename T>
  void drop(std::vector<T>& list) {
    release(list.capacity() * sizeof(T));
    std::vector<T>().swap(list);
  }

  // An execution begins, and nothing of earlier ones is left.
  void begin() noexcept { held_ = 0; }
  bool exhausted() const { return steps_left_ < 0; }

 private:
  static constexpr std::int64_t kAskSteps = std::int64_t{1} << 18;

  // At how many steps left to look again: at the latest when there are none.
  static std::int64_t look_after(std::int64_t steps) noexcept { return std::max<std::int64_t>(0, steps - kAskSteps); }
  void look();
  [[noreturn]] void refuse_steps() const;
  [[noreturn]] void refuse_bytes() const;

  ProofLimits limits_;
  std::int64_t steps_left_;
  std::int64_t next_look_;
  std::int64_t held_ = 0;
};

// Bytes that are counted as long as it lives.
class Held {
 public:
  Held(Budget& budget, std::size_t bytes) : budget_(&budget), bytes_(bytes) { budget.hold(bytes); }
  // Of a copy of what it counts.
  Held(const Held& other) : Held(*other.budget_, other.bytes_) {}
  Held& operator=(const Held&) = delete;
  ~Held() { budget_->release(bytes_); }

  void become(std::size_t bytes) {
    if (bytes > bytes_) budget_->hold(bytes - bytes_);
    if (bytes < bytes_) budget_->release(bytes_ - bytes);
    bytes_ = bytes;
  }
  Budget& budget() const { return *budget_; }

 private:
  Budget* budget_;
  std::size_t bytes_;
};

// A node of a map or set, beside what it holds.
inline constexpr std::size_t kNodeBytes = 48;

}  // namespace tutti::plan
