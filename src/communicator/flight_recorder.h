// The last calls of a communicator, for the moment when something went wrong.
//
// Thread rule: a handful of relaxed stores a call, by the thread that issues or runs it; dump() from any thread at any
// time, also while a call hangs. Each entry is a sequence lock: its version is odd while it is being written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channel/call_record.h"

namespace tutti {

class FlightRecorder {
 public:
  enum class State : std::uint64_t { kScheduled, kStarted, kCompleted, kFailed };

  enum class Of { kHost, kCuda };
  // Of a call on a GPU: its stream, and whether it was captured into a graph, whose replays are not seen.
  struct Place {
    std::uint64_t stream = 0;
    bool captured = false;
  };

  // Remembers the last `entries` calls (0: none).
  explicit FlightRecorder(int entries, Of device = Of::kHost);

  // A new entry; returns its id for update(). `peer` is the other end of a message, -1 for collectives.
  std::uint64_t add(const CallRecord& record, int peer, State state, std::int64_t timeout_ms) noexcept {
    return add(record, peer, state, timeout_ms, {});
  }
  std::uint64_t add(const CallRecord& record, int peer, State state, std::int64_t timeout_ms, Place place) noexcept;
  void update(std::uint64_t id, State state) noexcept;

  // JSON in the schema of PyTorch's flight recorder, version 2.10: what its trace analyser reads. Each entry also has
  // "device" ("cpu" or "cuda"), and of a GPU "stream" and "captured".
  std::string dump(const std::string& group, int rank, int size) const;

 private:
  static constexpr std::size_t kWords = 16;
  struct Entry {
    std::atomic<std::uint64_t> version{0};
    std::array<std::atomic<std::uint64_t>, kWords> words{};
  };
  void write(Entry& entry, std::size_t word, std::uint64_t value) noexcept {
    // release: a reader that sees this word sees the odd version before it; pairs with the acquires in dump().
    entry.words[word].store(value, std::memory_order_release);
  }

  Entry& entry_of(std::uint64_t id) const noexcept { return entries_[id & mask_]; }

  const Of device_;
  const std::size_t capacity_;
  const std::size_t mask_;  // of a power of two of places, in which a call's is found without a division
  const std::unique_ptr<Entry[]> entries_;
  std::atomic<std::uint64_t> next_{0};
};

// Several dumps as one, in order of time; the groups of each get names of their own by `suffix`.
std::string merge_records(const std::vector<std::string>& dumps, const std::string& suffix = {});

}  // namespace tutti
