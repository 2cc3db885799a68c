// Copies into shared memory that peers have read before and will read again.
//
// A store to a line that a peer still caches waits until the peer has given it up, and stores wait one after another:
// 3 to 7 ns a line between cores that share a cache, 27 ns between others (AMD EPYC, virtual machine), and a virtual
// machine changes from one to the other while it runs. A streaming store does not wait (1.2 ns a line), but then the
// peer reads from memory: 3 ns a line instead of 1.4 from our cache. Which is better depends on size, placement and
// machine, so the writer measures: of one write in kEvery it times a piece. It depends on how many peers read all of
// it, too: each of them reads the others' from memory then, at the same time, and takes as many times as long. How a
// rank stores what it publishes is nobody else's business, so ranks need not agree.
//
// Thread rule: belongs to the thread that runs a collective.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "device/cpu/kernels.h"

namespace tutti {

class SharedWriter {
 public:
  // `readers`: how many peers read all of it.
  void copy(std::byte* to, const void* from, std::size_t bytes, int readers = 1) noexcept {
    if (bytes < kLeast) {
      if (bytes != 0) cpu::copy(to, from, bytes);
    } else if (writes_++ % kEvery == 0) {
      measure(to, static_cast<const std::byte*>(from), bytes, readers);
    } else {
      store(to, from, bytes, readers);
    }
  }

 private:
  // Below this a write is a few lines, and reading them from memory costs more than any wait saved.
  static constexpr std::size_t kLeast = 4096;
  static constexpr std::size_t kPiece = 2048;
  static constexpr std::uint32_t kEvery = 16;
  // From this time for a piece and reader on, stores wait for peers: 12 ns a line, half of what it costs where it does,
  // three times of what it costs where it does not.
  static constexpr std::int64_t kWaitingNs = kPiece / 64 * 12;

  void store(std::byte* to, const void* from, std::size_t bytes, int readers) noexcept {
    if (waits_ns_ > kWaitingNs * readers) {
      cpu::copy_streaming(to, from, bytes);
    } else {
      cpu::copy(to, from, bytes);
    }
  }
  void measure(std::byte* to, const std::byte* from, std::size_t bytes, int readers) noexcept {
    // Stores wait in the core's buffer. The fences are for their time, not for an order: the first keeps earlier stores
    // out of the measurement, the second makes the piece pay for its own.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::int64_t start = now_ns();
    cpu::copy(to, from, kPiece);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::int64_t took = now_ns() - start;
    // The lower of two measurements in a row: an interruption makes one too long.
    waits_ns_ = std::min(took, last_ns_);
    last_ns_ = took;
    store(to + kPiece, from + kPiece, bytes - kPiece, readers);
  }

  std::uint32_t writes_ = 0;
  std::int64_t last_ns_ = 0;
  std::int64_t waits_ns_ = 0;
};

}  // namespace tutti
