// The address bookkeeping against a model: no overlap, no loss, everything merges again.
#include "device/cpu/range_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "random_seed.h"

namespace tutti {
namespace {

using Block = RangeAllocator::Block;
constexpr std::size_t kGranule = 64;
constexpr std::size_t kBytes = 1 << 20;

TEST(RangeAllocator, RoundsUpByAtMostASixteenth) {
  const RangeAllocator allocator(kGranule);
  EXPECT_EQ(allocator.rounded(0), kGranule);
  EXPECT_EQ(allocator.rounded(64), 64u);
  EXPECT_EQ(allocator.rounded(65), 128u);
  EXPECT_EQ(allocator.rounded(4096), 4096u);
  EXPECT_EQ(allocator.rounded(4097), 4096u + 256u);
  for (std::size_t bytes = 1; bytes < 200'000; bytes += 37) {
    EXPECT_GE(allocator.rounded(bytes), bytes);
    EXPECT_LE(allocator.rounded(bytes), bytes + bytes / 16 + kGranule);
    EXPECT_EQ(allocator.rounded(bytes) % kGranule, 0u);
  }
}

TEST(RangeAllocator, TakesTheSmallestRangeThatFits) {
  RangeAllocator allocator(kGranule);
  allocator.add(0, kBytes);
  Block* const large = allocator.take(8192);
  Block* const wall = allocator.take(64);
  Block* const small = allocator.take(1024);
  ASSERT_NE(allocator.take(64), nullptr);
  const std::size_t small_offset = small->offset;
  const std::size_t large_offset = large->offset;
  allocator.give(large);
  allocator.give(small);
  EXPECT_EQ(allocator.take(1000)->offset, small_offset);
  EXPECT_EQ(allocator.take(1000)->offset, large_offset);
  EXPECT_EQ(allocator.find(wall->offset), wall);
}

TEST(RangeAllocator, MergesWithBothNeighbours) {
  RangeAllocator allocator(kGranule);
  allocator.add(0, kBytes);
  Block* const a = allocator.take(64);
  Block* const b = allocator.take(64);
  Block* const c = allocator.take(64);
  allocator.give(a);
  allocator.give(c);
  EXPECT_EQ(allocator.free_ranges(), 2u);
  allocator.give(b);
  EXPECT_EQ(allocator.free_ranges(), 1u);
  EXPECT_EQ(allocator.free_bytes(), kBytes);
  EXPECT_EQ(allocator.take(kBytes)->offset, 0u);
}

TEST(RangeAllocator, DoesNotMergeAcrossAGapBetweenAddedRanges) {
  RangeAllocator allocator(kGranule);
  allocator.add(0, 1024);
  allocator.add(4096, 1024);
  EXPECT_EQ(allocator.free_ranges(), 2u);
  EXPECT_EQ(allocator.take(2048), nullptr);
  EXPECT_EQ(allocator.find(2048), nullptr);
  allocator.add(1024, 3072);
  EXPECT_EQ(allocator.free_ranges(), 1u);
}

TEST(RangeAllocator, FindsABlockByEveryAddressInIt) {
  RangeAllocator allocator(kGranule);
  allocator.add(0, kBytes);
  Block* const a = allocator.take(128);
  Block* const b = allocator.take(128);
  EXPECT_EQ(allocator.find(a->offset + 127), a);
  EXPECT_EQ(allocator.find(b->offset), b);
  EXPECT_EQ(allocator.find(b->offset + 128), nullptr);
  allocator.give(a);
  EXPECT_EQ(allocator.find(0), nullptr);
}

TEST(RangeAllocator, RetiresWhatIsFreeBelowAFloor) {
  RangeAllocator allocator(kGranule);
  allocator.add(0, kBytes);
  Block* const hole = allocator.take(1024);
  Block* const kept = allocator.take(1024);
  allocator.give(hole);
  allocator.retire_free_below(64 << 10);
  EXPECT_EQ(allocator.free_bytes(), kBytes - (64 << 10));
  EXPECT_EQ(allocator.take(64)->offset, std::size_t{64} << 10);
  EXPECT_EQ(allocator.find(kept->offset), kept);
  allocator.retire_free_below(kBytes);
  EXPECT_EQ(allocator.take(64), nullptr);
}

TEST(RangeAllocator, RandomCallsAgreeWithAModel) {
  const std::uint32_t seed = test::random_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  RangeAllocator allocator(kGranule);
  allocator.add(0, kBytes);
  std::map<std::size_t, std::size_t> model;  // offset to bytes
  std::vector<Block*> blocks;
  for (int step = 0; step < 20'000; ++step) {
    if (blocks.empty() || random() % 100 < 52) {
      const std::size_t bytes = 1 + random() % (1u << (1 + random() % 16));
      Block* const block = allocator.take(bytes);
      if (block == nullptr) continue;
      ASSERT_GE(block->bytes, bytes);
      ASSERT_LE(block->offset + block->bytes, kBytes);
      const auto next = model.lower_bound(block->offset);
      ASSERT_TRUE(next == model.end() || block->offset + block->bytes <= next->first);
      ASSERT_TRUE(next == model.begin() || std::prev(next)->first + std::prev(next)->second <= block->offset);
      model[block->offset] = block->bytes;
      blocks.push_back(block);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ASSERT_EQ(allocator.find(blocks.back()->offset + random() % blocks.back()->bytes), blocks.back());
      model.erase(blocks.back()->offset);
      allocator.give(blocks.back());
      blocks.pop_back();
    }
    std::size_t used = 0;
    if (step % 100 == 0) {
      for (const auto& [offset, bytes] : model) used += bytes;
      ASSERT_EQ(allocator.free_bytes(), kBytes - used);
    }
  }
  for (Block* block : blocks) allocator.give(block);
  EXPECT_EQ(allocator.free_ranges(), 1u);
  EXPECT_EQ(allocator.free_bytes(), kBytes);
}

}  // namespace
}  // namespace tutti
