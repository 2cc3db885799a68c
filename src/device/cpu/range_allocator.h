// Bookkeeping of an address range: which parts are free, which are blocks. Touches no memory of the range itself.
//
// Best fit over an index of free ranges by size, neighbours coalesced at once. Every block keeps the index node that
// its range will need when it is free again, so giving back never allocates and never fails.
//
// Ownership: its metadata lies in private heap memory, where no other process can harm it. Thread rule: the owner's
// lock guards every member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tutti {

enum class BlockState : std::uint8_t {
  kFree,
  kUsed,
  kChunk,    // cut up further by another allocator
  kHeld,     // freed by its owner, but a forked child may still read it
  kRetired,  // freed by its owner and never given out again
};

class RangeAllocator {
 public:
  struct Block {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    BlockState state = BlockState::kFree;
    bool quarantined = false;
    std::uint32_t born = 0;  // forks of this process before the block was given out

   private:
    friend class RangeAllocator;
    std::set<std::pair<std::size_t, std::size_t>>::node_type index_node;
  };

  // Sizes and offsets are multiples of `granule`.
  explicit RangeAllocator(std::size_t granule) noexcept : granule_(granule) {}

  // Makes [offset, offset + bytes) available; it must not overlap anything known. Throws std::bad_alloc.
  void add(std::size_t offset, std::size_t bytes);

  // A block of at least `bytes`; null when no free range is large enough. Throws std::bad_alloc, changing nothing.
  Block* take(std::size_t bytes);

  // Frees a block of any state and merges it with free neighbours.
  void give(Block* block) noexcept;

  // The block that contains `offset`; null if that offset is free or unknown.
  const Block* find(std::size_t offset) const noexcept;

  // Retires everything free below `floor`. Throws std::bad_alloc.
  void retire_free_below(std::size_t floor);

  // End of the highest block ever taken.
  std::size_t high_water() const noexcept { return high_water_; }
  std::size_t free_bytes() const noexcept { return free_bytes_; }
  std::size_t free_ranges() const noexcept { return free_.size(); }

  // What a request occupies: rounded up to a sixteenth of its power of two, so that nearly equal sizes reuse each
  // other's blocks at a cost of at most 1/16.
  std::size_t rounded(std::size_t bytes) const noexcept;

 private:
  using Index = std::set<std::pair<std::size_t, std::size_t>>;  // (bytes, offset): the lowest of equal size first
  using Blocks = std::map<std::size_t, Block>;

  static Index::node_type new_index_node();
  void make_free(Block& block, Index::node_type node) noexcept;

  const std::size_t granule_;
  Blocks blocks_;  // by offset; free ranges are in it too
  Index free_;
  std::size_t free_bytes_ = 0;
  std::size_t high_water_ = 0;
};

}  // namespace tutti
