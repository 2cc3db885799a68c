// What a communicator has done: exact counts, and times (of calls below 8 KB only a sample is timed).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct MetricsRow {
  std::string collective;  // "all_reduce", "send", ...
  std::string size_class;  // "<=64B", "<=1KB", "<=8KB", "<=64KB", "<=512KB", "<=4MB", "<=64MB", ">64MB"
  std::string algorithm;   // the one that ran
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;  // of this rank's block or message
  std::uint64_t timed_calls = 0;
  std::uint64_t total_ns = 0;  // of the timed calls
  std::uint64_t wait_ns = 0;   // the part of it spent waiting for peers
  std::uint64_t p50_ns = 0;    // median of the timed calls, to a factor of 1.2
};

struct Metrics {
  std::vector<MetricsRow> rows;
  std::uint64_t mapped_calls = 0;  // calls that needed no copy because all ranks map the tensors
  std::uint64_t errors = 0;
};

}  // namespace tutti
