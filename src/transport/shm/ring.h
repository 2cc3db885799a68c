// A stream of bytes from one process to another through shared memory: one writer, one reader.
//
// Memory: a RingHeader and `capacity` bytes (a power of two), zeroed before either side looks at it. A fresh memfd is
// that already. The memory belongs to the caller and outlives both ends.
//
// Considerations. `head` and `tail` count all bytes ever written and read; each is stored by one side only and lies
// 128 bytes from the other, because adjacent-line prefetchers couple pairs of lines. Each side keeps its own counter
// and the last value it saw of the other's in private memory: the writer looks at `tail` only when the ring seems
// full, the reader at `head` only when it seems empty. A counter that a confused or hostile peer has stored is
// believed only within what the own counter allows; everything else turns the end `broken()`, so no value of shared
// memory can lead an access out of the ring. Large copies are published in pieces, so that the peer copies piece k
// while we copy piece k + 1.
//
// Thread rule: one thread at a time uses an end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/link.h"

namespace tutti {

struct RingHeader {
  alignas(128) std::atomic<std::uint64_t> head;  // bytes written; stored by the writer
  alignas(128) std::atomic<std::uint64_t> tail;  // bytes read; stored by the reader
};
static_assert(sizeof(RingHeader) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "a lock could be left held by a dead process");

// Memory that a ring of `capacity` data bytes takes. It must start at a multiple of 128.
constexpr std::size_t ring_bytes(std::size_t capacity) noexcept { return sizeof(RingHeader) + capacity; }

class RingWriter {
 public:
  RingWriter(std::byte* memory, std::size_t capacity) noexcept;

  // Takes a prefix of `head` followed by `body`; 0 when the ring is full or broken.
  std::size_t write(ConstBytes head, ConstBytes body) noexcept;
  // The reader has read all.
  bool drained() const noexcept;
  bool broken() const noexcept { return broken_; }

 private:
  std::size_t room(std::size_t wanted) noexcept;
  void put(ConstBytes bytes) noexcept;

  RingHeader* header_;
  std::byte* data_;
  std::size_t capacity_;
  std::uint64_t head_ = 0;       // written, published or about to be
  std::uint64_t seen_tail_ = 0;  // never ahead of the real one
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader(std::byte* memory, std::size_t capacity) noexcept;

  // Gives up to into.size() bytes; 0 when the ring is empty or broken. Empty costs one load.
  std::size_t read(MutableBytes into) noexcept;
  bool empty() const noexcept;
  bool broken() const noexcept { return broken_; }

 private:
  std::size_t available() noexcept;

  RingHeader* header_;
  std::byte* data_;
  std::size_t capacity_;
  std::uint64_t tail_ = 0;
  std::uint64_t seen_head_ = 0;  // never ahead of the real one
  bool broken_ = false;
};

}  // namespace tutti
