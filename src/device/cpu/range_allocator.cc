// Best fit with coalescing over two ordered trees: all ranges by offset, the free ones by size.
#include "device/cpu/range_allocator.h"

#include <algorithm>
#include <bit>

#include "base/rounding.h"

namespace tutti {

RangeAllocator::Index::node_type RangeAllocator::new_index_node() {
  Index one;
  one.emplace(0, 0);
  return one.extract(one.begin());
}

std::size_t RangeAllocator::rounded(std::size_t bytes) const noexcept {
  const std::size_t step = std::max(granule_, std::bit_floor(std::max<std::size_t>(bytes, 1)) / 16);
  return round_up(std::max<std::size_t>(bytes, 1), step);
}

void RangeAllocator::make_free(Block& block, Index::node_type node) noexcept {
  block.state = BlockState::kFree;
  block.quarantined = false;
  node.value() = {block.bytes, block.offset};
  free_.insert(std::move(node));
  free_bytes_ += block.bytes;
}

void RangeAllocator::add(std::size_t offset, std::size_t bytes) {
  Index::node_type node = new_index_node();
  Block& block = blocks_[offset];
  block.offset = offset;
  block.bytes = bytes;
  block.index_node = std::move(node);
  give(&block);
}

RangeAllocator::Block* RangeAllocator::take(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes);
  const auto found = free_.lower_bound({wanted, 0});
  if (found == free_.end()) return nullptr;
  const auto [available, offset] = *found;
  Block& block = blocks_.find(offset)->second;
  if (available == wanted) {
    block.index_node = free_.extract(found);
  } else {
    // What may throw comes first; from the extraction on nothing allocates.
    Index::node_type node = new_index_node();
    Block& rest = blocks_[offset + wanted];
    block.index_node = std::move(node);
    block.bytes = wanted;
    rest.offset = offset + wanted;
    rest.bytes = available - wanted;
    Index::node_type rest_node = free_.extract(found);
    free_bytes_ -= rest.bytes;
    make_free(rest, std::move(rest_node));
  }
  free_bytes_ -= wanted;
  block.state = BlockState::kUsed;
  high_water_ = std::max(high_water_, offset + wanted);
  return &block;
}

void RangeAllocator::give(Block* block) noexcept {
  auto position = blocks_.find(block->offset);
  Index::node_type node = std::move(position->second.index_node);
  const auto absorb = [this](Blocks::iterator into, Blocks::iterator next) {
    free_.erase({next->second.bytes, next->second.offset});
    free_bytes_ -= next->second.bytes;
    into->second.bytes += next->second.bytes;
    blocks_.erase(next);
  };
  if (const auto next = std::next(position); next != blocks_.end() && next->second.state == BlockState::kFree &&
                                             next->first == position->first + position->second.bytes) {
    absorb(position, next);
  }
  if (position != blocks_.begin()) {
    const auto previous = std::prev(position);
    if (previous->second.state == BlockState::kFree && previous->first + previous->second.bytes == position->first) {
      free_.erase({previous->second.bytes, previous->second.offset});
      free_bytes_ -= previous->second.bytes;
      previous->second.bytes += position->second.bytes;
      blocks_.erase(position);
      position = previous;
    }
  }
  make_free(position->second, std::move(node));
}

const RangeAllocator::Block* RangeAllocator::find(std::size_t offset) const noexcept {
  auto position = blocks_.upper_bound(offset);
  if (position == blocks_.begin()) return nullptr;
  const Block& block = std::prev(position)->second;
  if (block.state == BlockState::kFree || offset - block.offset >= block.bytes) return nullptr;
  return &block;
}

void RangeAllocator::retire_free_below(std::size_t floor) {
  for (auto position = blocks_.begin(); position != blocks_.end() && position->first < floor; ++position) {
    Block& block = position->second;
    if (block.state != BlockState::kFree) continue;
    if (block.offset + block.bytes > floor) {
      Index::node_type node = new_index_node();
      Block& upper = blocks_[floor];
      upper.offset = floor;
      upper.bytes = block.offset + block.bytes - floor;
      free_.erase({block.bytes, block.offset});
      free_bytes_ -= block.bytes;
      block.bytes = floor - block.offset;
      make_free(upper, std::move(node));
    } else {
      free_.erase({block.bytes, block.offset});
      free_bytes_ -= block.bytes;
    }
    block.state = BlockState::kRetired;
  }
}

}  // namespace tutti
