// Counts and times of a communicator's calls, by call, size class and algorithm.
//
// Thread rule: one thread at a time records a kind of call (the communicator's locks see to it); snapshots may be taken
// at any time from any thread. Counters are relaxed atomics with one writer: a snapshot may miss the call that is
// running, never tear.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "tutti/metrics.h"
#include "tutti/types.h"

namespace tutti {

class MetricsTable {
 public:
  static constexpr int kCalls = kCollectiveCount + 4;  // and those of call_record.h
  static constexpr int kSizeClasses = 8;
  // Histogram buckets grow by 1.2: 144 of them span 1 ns to 4 minutes.
  static constexpr int kBuckets = 144;

  // Whether the next call of so many bytes is to be timed: all from 8 KB up, of smaller ones a sample.
  bool wants_time(std::size_t bytes) noexcept {
    constexpr std::uint32_t kEvery = 64;
    return bytes >= 8192 || ++small_calls_ % kEvery == 1;
  }

  // `algorithm` lives as long as the table. total_ns < 0: not timed.
  void record(int call, std::size_t bytes, std::string_view algorithm, std::int64_t total_ns,
              std::int64_t wait_ns) noexcept;
  void count_mapped() noexcept { bump(mapped_, 1); }
  void count_error() noexcept { bump(errors_, 1); }

  Metrics snapshot() const;
  void reset() noexcept;

 private:
  struct Row {
    std::string_view algorithm;
    std::array<std::atomic<std::uint64_t>, 5> counters{};  // calls, bytes, timed, total, wait
    std::array<std::atomic<std::uint32_t>, kBuckets> buckets{};
    Row* next = nullptr;  // set before the row is published
  };
  // relaxed: one writer, readers want any recent value.
  static void bump(std::atomic<std::uint64_t>& counter, std::uint64_t by) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  Row* row(int call, int size_class, std::string_view algorithm) noexcept;  // null: no memory

  std::array<std::atomic<Row*>, kCalls * kSizeClasses> rows_{};
  std::vector<std::unique_ptr<Row>> owned_;
  std::mutex owned_mutex_;  // guards owned_ while a row is added; a leaf
  std::uint32_t small_calls_ = 0;
  std::atomic<std::uint64_t> mapped_{0};
  std::atomic<std::uint64_t> errors_{0};
};

int size_class(std::size_t bytes) noexcept;
std::string_view call_name(int call) noexcept;

}  // namespace tutti
