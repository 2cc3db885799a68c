// What a communicator has done: exact counts, and times (of calls below 8 KB only a sample is timed; calls on a GPU are
// not timed). A call on a GPU counts when it is issued or captured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

struct MetricsRow {
  std::string device = "cpu";  // or "cuda"
  std::string collective;      // "all_reduce", "send", ...
  std::string size_class;      // "<=64B", "<=1KB", "<=8KB", "<=64KB", "<=512KB", "<=4MB", "<=64MB", ">64MB"
  std::string algorithm;       // the one that ran
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
  // Waits for a rank of this host that nobody ended but their time slice, though what they waited for was there and
  // announced: lost wake-ups, each a millisecond or more. 0 unless Tutti or the system is at fault. Since the
  // communicator was made.
  std::uint64_t rescued_waits = 0;
  // CUDA: collectives that the GPU has run since the communicator was made, replays of graphs included. Uneven
  // all-to-all, gather and scatter, which run as messages, are not in it; a call on copy engines counts as two.
  std::uint64_t device_calls = 0;
};

// Adds the counts of `some` to those of `all`, row by row: of communicators on GPUs, which time nothing.
void add_counts(Metrics& all, const Metrics& some);

}  // namespace tutti
