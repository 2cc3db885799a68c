// What a call takes of memory while it runs, there before the call has its number: a call for which there is none is
// refused while no other rank waits for it. An algorithm says beforehand how much it takes (Algorithm::memory). What it
// takes beyond that, or where it was chosen only when the call was announced, is looked for when it is taken, and from
// then on there beforehand.
//
// Thread rule: any thread reserves; begin() and what follows is for the thread of the call. The mutex guards what is
// reserved; a leaf.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "base/rounding.h"

namespace tutti {

class CallMemory {
 public:
  // What take() gives begins at a multiple of this, and uses up one.
  static constexpr std::size_t kLine = 64;

  template <class T>
  static constexpr std::size_t bytes_of(std::size_t count) noexcept {
    static_assert(alignof(T) <= kLine);
    return round_up(count * sizeof(T), kLine);
  }

  // All calls that begin from now on have `bytes` at least. Throws std::bad_alloc.
  void reserve(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (bytes <= reserved_) return;
    next_ = Block(bytes);
    reserved_ = bytes;
    has_next_.store(true, std::memory_order_release);  // pairs with the acquire in begin()
  }

  // Nothing of the last call's is in use any more.
  void begin() noexcept {
    used_ = 0;
    if (!more_.empty()) keep_more();
    // acquire: what was reserved for this call is seen; it came before the call, so a later one is missed by right.
    if (!has_next_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    has_next_.store(false, std::memory_order_relaxed);  // written under the mutex only
    block_ = std::move(next_);
    bytes_ = reserved_;
  }

  // Uninitialised. Throws std::bad_alloc only where the call takes more than was reserved for it.
  template <class T>
  std::span<T> take(std::size_t count) {
    const std::size_t bytes = bytes_of<T>(count);
    if (bytes > bytes_ - used_) {
      late_.fetch_add(1, std::memory_order_relaxed);  // a number for tests, which orders nothing
      late_bytes_ += bytes;
      return {reinterpret_cast<T*>(more_.emplace_front(bytes).first), count};
    }
    std::byte* const at = block_.first + used_;
    used_ += bytes;
    return {reinterpret_cast<T*>(at), count};
  }

  // How often calls of this process have taken what was not reserved. relaxed: as where it is counted.
  static std::uint64_t late() noexcept { return late_.load(std::memory_order_relaxed); }

  // A part of a call: what it takes is free again at its end.
  class Part {
   public:
    explicit Part(CallMemory& memory) noexcept : memory_(memory), used_(memory.used_) {}
    ~Part() { memory_.used_ = used_; }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    CallMemory& memory_;
    const std::size_t used_;
  };

 private:
  struct Block {
    Block() = default;
    explicit Block(std::size_t bytes) : memory(std::make_unique_for_overwrite<std::byte[]>(bytes + kLine - 1)) {
      const std::size_t past_line = reinterpret_cast<std::uintptr_t>(memory.get()) % kLine;
      first = memory.get() + (kLine - past_line) % kLine;
    }
    std::unique_ptr<std::byte[]> memory;
    std::byte* first = nullptr;  // in it, at the begin of a line
  };

  // The next calls find there what the last one did not.
  void keep_more() noexcept {
    more_.clear();
    try {
      reserve(bytes_ + std::exchange(late_bytes_, 0));
    } catch (const std::bad_alloc&) {  // then it is looked for again
    }
  }

  static inline std::atomic<std::uint64_t> late_{0};

  // Of the call under way.
  Block block_;
  std::size_t bytes_ = 0, used_ = 0;  // of block_, from its first on
  std::forward_list<Block> more_;
  std::size_t late_bytes_ = 0;  // in more_
  std::atomic<bool> has_next_{false};
  std::mutex mutex_;
  Block next_;                // of the next call, if that has more; guarded by the mutex, and so is
  std::size_t reserved_ = 0;  // how much that is, or what block_ has
};

}  // namespace tutti
