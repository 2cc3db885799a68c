// The arena inside one process: blocks, cache, holes, quarantine, exhaustion.
#include "device/cpu/arena.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "arena/memory.h"
#include "random_seed.h"
#include "support/child_process.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti {
namespace {

TEST(Arena, BlocksAreAlignedApartAndWritable) {
  const auto arena = Arena::create(64 * kMiB);
  EXPECT_EQ(arena->bytes(), 64 * kMiB);
  std::vector<std::pair<std::byte*, std::size_t>> blocks;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{1000}, std::size_t{63'000}, std::size_t{65'000},
        std::size_t{65'535}, std::size_t{65'536}, std::size_t{65'537}, 3 * kMiB + 1}) {
    auto* const data = static_cast<std::byte*>(arena->allocate(bytes));
    ASSERT_NE(data, nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % (bytes >= 65'536 ? 4096 : 64), 0u) << bytes;
    std::memset(data, static_cast<int>(blocks.size()), bytes);
    blocks.emplace_back(data, bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (std::size_t k = 0; k < blocks[i].second; ++k) ASSERT_EQ(blocks[i].first[k], static_cast<std::byte>(i));
    arena->deallocate(blocks[i].first);
  }
  EXPECT_EQ(arena->bytes_in_use(), 0u);
}

TEST(Arena, AFreedBlockIsReused) {
  const auto arena = Arena::create(64 * kMiB);
  for (const std::size_t bytes : {std::size_t{100}, std::size_t{64'512}, 5 * kMiB}) {
    void* const data = arena->allocate(bytes);
    arena->deallocate(data);
    EXPECT_EQ(arena->allocate(bytes), data);
  }
}

TEST(Arena, KnowsItsAddresses) {
  const auto arena = Arena::create(4 * kMiB);
  auto* const first = static_cast<std::byte*>(arena->allocate(kMiB));
  auto* const second = static_cast<std::byte*>(arena->allocate(kMiB));
  std::byte* const begin = first - arena->offset_of(first, 0);
  EXPECT_TRUE(arena->contains(begin));
  EXPECT_TRUE(arena->contains(begin + arena->bytes() - 1));
  EXPECT_FALSE(arena->contains(begin + arena->bytes()));
  EXPECT_FALSE(arena->contains(begin - 1));
  EXPECT_FALSE(arena->contains(nullptr));
  int local = 0;
  EXPECT_FALSE(arena->contains(&local));
  EXPECT_EQ(arena->offset_of(&local, 4), kNotMapped);
  EXPECT_EQ(arena->offset_of(second, kMiB), static_cast<std::uint64_t>(second - begin));
  EXPECT_EQ(arena->offset_of(second + 7, 100), static_cast<std::uint64_t>(second - begin) + 7);
  EXPECT_EQ(arena->offset_of(second + kMiB - 1, 1), static_cast<std::uint64_t>(second - begin) + kMiB - 1);
  EXPECT_EQ(arena->offset_of(second + kMiB - 1, 2), kNotMapped) << "reaches past its block";
  EXPECT_EQ(arena->offset_of(first + kMiB / 2, kMiB), kNotMapped) << "spans two blocks";
  EXPECT_EQ(arena->offset_of(second, SIZE_MAX), kNotMapped);
  arena->deallocate(second);
  EXPECT_EQ(arena->offset_of(second, 1), kNotMapped) << "freed";
  auto* const small = static_cast<std::byte*>(arena->allocate(100));
  EXPECT_EQ(arena->offset_of(small + 10, 20), static_cast<std::uint64_t>(small - begin) + 10);
  EXPECT_EQ(arena->offset_of(small, 4096), kNotMapped);
  arena->deallocate(small);
  EXPECT_EQ(arena->offset_of(small, 1), kNotMapped);
}

TEST(Arena, AFullArenaReturnsNullAndGoesOnWorking) {
  const auto arena = Arena::create(8 * kMiB);
  EXPECT_EQ(arena->allocate(9 * kMiB), nullptr);
  EXPECT_EQ(arena->allocate(SIZE_MAX), nullptr);
  std::vector<void*> blocks;
  while (void* const data = arena->allocate(kMiB)) blocks.push_back(data);
  EXPECT_EQ(blocks.size(), 8u);
  EXPECT_EQ(arena->allocate(1), nullptr);
  for (void* data : blocks) arena->deallocate(data);
  EXPECT_NE(arena->allocate(8 * kMiB), nullptr) << "all of it merged again";
}

TEST(Arena, PointersThatAreNoBlocksAreIgnored) {
  const auto arena = Arena::create(8 * kMiB);
  auto* const data = static_cast<std::byte*>(arena->allocate(kMiB));
  int local = 0;
  testing::internal::CaptureStderr();
  arena->deallocate(nullptr);
  arena->deallocate(&local);
  arena->deallocate(data + 64);
  EXPECT_EQ(arena->bytes_in_use(), kMiB);
  arena->deallocate(data);
  arena->deallocate(data);
  EXPECT_EQ(arena->bytes_in_use(), 0u);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3);
}

TEST(Arena, CachesUpToItsLimitAndPunchesTheRest) {
  const auto arena = Arena::create(128 * kMiB, 8 * kMiB);
  auto* const kept = static_cast<std::byte*>(arena->allocate(2 * kMiB));
  auto* const large = static_cast<std::byte*>(arena->allocate(32 * kMiB));
  std::memset(kept, 1, 2 * kMiB);
  std::memset(large, 2, 32 * kMiB);
  EXPECT_GE(resident_bytes(arena->fd()), 34 * kMiB);
  arena->deallocate(large);
  EXPECT_LE(arena->bytes_cached(), 8 * kMiB);
  EXPECT_GT(arena->bytes_cached(), 0u) << "a cache remains";
  EXPECT_LE(resident_bytes(arena->fd()), 10 * kMiB + 2 * kMiB);
  for (std::size_t i = 0; i < 2 * kMiB; ++i) ASSERT_EQ(kept[i], std::byte{1});
  auto* const again = static_cast<std::byte*>(arena->allocate(32 * kMiB));
  std::memset(again, 3, 32 * kMiB);
  EXPECT_EQ(again[32 * kMiB - 1], std::byte{3});
}

TEST(Arena, ALowerLimitGivesBackWhatIsCached) {
  const auto arena = Arena::create(64 * kMiB, 32 * kMiB);
  auto* const block = static_cast<std::byte*>(arena->allocate(24 * kMiB));
  std::memset(block, 1, 24 * kMiB);
  arena->deallocate(block);
  EXPECT_EQ(arena->bytes_cached(), 24 * kMiB);
  arena->limit_cache(8 * kMiB);
  EXPECT_LE(arena->bytes_cached(), 8 * kMiB);
  EXPECT_LE(resident_bytes(arena->fd()), 8 * kMiB);
  arena->limit_cache(64 * kMiB);  // raises nothing
  arena->deallocate(arena->allocate(24 * kMiB));
  EXPECT_LE(arena->bytes_cached(), 8 * kMiB);
}

TEST(Arena, WhatAllProcessesKeepIsAPartOfTheMemory) {
  constexpr std::size_t kGiB = 1024 * kMiB;
  EXPECT_EQ(chosen_cache_bytes(64 * kGiB, 1), 8 * kGiB);
  EXPECT_EQ(chosen_cache_bytes(64 * kGiB, 8), kGiB);
  EXPECT_EQ(chosen_cache_bytes(64 * kGiB, 64), 256 * kMiB) << "no less while that is a quarter at most";
  EXPECT_EQ(chosen_cache_bytes(kGiB, 1), 256 * kMiB);
  EXPECT_EQ(chosen_cache_bytes(kGiB, 8), 32 * kMiB) << "a quarter of a container's memory for all";
  EXPECT_EQ(chosen_cache_bytes(kGiB, 0), 256 * kMiB);
}

TEST(Arena, UntouchedMemoryCostsNothing) {
  const auto arena = Arena::create(256 * kMiB);
  ASSERT_NE(arena->allocate(200 * kMiB), nullptr);
  EXPECT_EQ(resident_bytes(arena->fd()), 0u);
}

TEST(Arena, AQuarantinedBlockIsNeverGivenOutAgain) {
  for (const std::size_t bytes : {std::size_t{256}, kMiB}) {
    const auto arena = Arena::create(8 * kMiB);
    auto* const bad = static_cast<std::byte*>(arena->allocate(bytes));
    std::memset(bad, 9, bytes);
    arena->quarantine(bad + bytes / 2);  // by any address in it
    arena->quarantine(bad);
    EXPECT_EQ(arena->bytes_quarantined(), bytes);
    EXPECT_EQ(arena->bytes_in_use(), bytes) << "its owner still has it";
    EXPECT_EQ(arena->offset_of(bad, bytes), kNotMapped);
    EXPECT_EQ(bad[bytes - 1], std::byte{9});
    arena->deallocate(bad);
    EXPECT_EQ(arena->bytes_in_use(), 0u);
    EXPECT_EQ(arena->bytes_quarantined(), bytes);
    EXPECT_EQ(arena->offset_of(bad, 1), kNotMapped);
    while (void* const data = arena->allocate(bytes)) {
      const auto* const begin = static_cast<std::byte*>(data);
      ASSERT_TRUE(begin + bytes <= bad || bad + bytes <= begin);
    }
  }
}

TEST(Arena, AFreedQuarantinedBlockGivesItsMemoryBack) {
  const auto arena = Arena::create(64 * kMiB);
  void* const data = arena->allocate(16 * kMiB);
  std::memset(data, 1, 16 * kMiB);
  arena->quarantine(data);
  EXPECT_GE(resident_bytes(arena->fd()), 16 * kMiB);
  arena->deallocate(data);
  EXPECT_EQ(resident_bytes(arena->fd()), 0u);
}

TEST(Arena, QuarantineOfNothingIsHarmless) {
  const auto arena = Arena::create(8 * kMiB);
  void* const data = arena->allocate(kMiB);
  arena->deallocate(data);
  int local = 0;
  arena->quarantine(data);
  arena->quarantine(&local);
  arena->quarantine(nullptr);
  EXPECT_EQ(arena->bytes_quarantined(), 0u);
  EXPECT_EQ(arena->allocate(kMiB), data);
}

struct Pattern {
  std::byte* data;
  std::size_t bytes;
  std::uint32_t value;

  // The ends and one word a page, which is where a lost page or an overlap shows.
  template <typename Function>
  void for_each_word(Function&& function) const {
    for (std::size_t at = 0; at + 4 <= bytes; at += 4096) function(at);
    if (bytes >= 4) function(bytes - 4);
  }
  // The same in every byte, since the last word may overlap the one before.
  std::uint32_t key() const { return (value % 255 + 1) * 0x01010101u; }
  void write() const {
    for_each_word([this, key = key()](std::size_t at) { std::memcpy(data + at, &key, 4); });
  }
  bool intact() const {
    bool same = true;
    for_each_word([&, key = key()](std::size_t at) { same = same && std::memcmp(data + at, &key, 4) == 0; });
    return same;
  }
};

TEST(Arena, RandomCallsKeepEveryBlocksBytesThroughHolesAndMerging) {
  const std::uint32_t seed = test::random_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  const auto arena = Arena::create(96 * kMiB, 4 * kMiB);
  std::vector<Pattern> blocks;
  int punched = 0;
  for (std::uint32_t step = 0; step < 4'000; ++step) {
    const std::size_t resident = step % 16 == 0 ? resident_bytes(arena->fd()) : 0;
    if (blocks.empty() || random() % 100 < 51) {
      const std::size_t bytes = random() % (std::size_t{16} << (random() % 20)) + 4;
      void* const data = arena->allocate(bytes);
      if (data == nullptr) continue;
      blocks.push_back({static_cast<std::byte*>(data), bytes, step});
      blocks.back().write();
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      ASSERT_TRUE(blocks.back().intact()) << "step " << step;
      arena->deallocate(blocks.back().data);
      blocks.pop_back();
      if (step % 16 == 0 && resident_bytes(arena->fd()) < resident) ++punched;
    }
  }
  for (const Pattern& block : blocks) {
    ASSERT_TRUE(block.intact());
    arena->deallocate(block.data);
  }
  EXPECT_GT(punched, 0) << "the test must have met holes";
  EXPECT_EQ(arena->bytes_in_use(), 0u);
}

TEST(Arena, ThreadsMayUseItAtOnce) {
  const auto arena = Arena::create(64 * kMiB, 2 * kMiB);
  const auto work = [&arena](std::uint32_t key) {
    std::mt19937 random(key);
    for (int i = 0; i < 300; ++i) {
      const std::size_t bytes = 64 + random() % (i % 8 == 0 ? 4 * kMiB : 100'000);
      const Pattern block{static_cast<std::byte*>(arena->allocate(bytes)), bytes, key};
      if (block.data == nullptr) continue;
      block.write();
      EXPECT_NE(arena->offset_of(block.data, bytes), kNotMapped);
      EXPECT_TRUE(block.intact());
      arena->deallocate(block.data);
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t key = 1; key <= 4; ++key) threads.emplace_back(work, key);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->bytes_in_use(), 0u);
}

TEST(Arena, ALimitOfAddressSpaceGivesASmallerOne) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need the address space themselves";
  const int code = test::run_in_child([] {
    const rlimit limit{std::size_t{4} << 30, std::size_t{4} << 30};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    const auto arena = Arena::create(std::size_t{64} << 30);
    if (arena->bytes() > std::size_t{4} << 30 || arena->bytes() < 64 * kMiB) return 2;
    return arena->allocate(kMiB) != nullptr ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
}

TEST(Arena, ARefusedFileIsAnErrorOfItsKind) {
  const int code = test::run_in_child([] {
    const rlimit limit{kMiB, kMiB};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    try {
      Arena::create(8 * kMiB);
      return 2;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kExhausted ? 0 : 3;
    }
  });
  EXPECT_EQ(code, 0);
}

TEST(Arena, IdsDiffer) { EXPECT_NE(Arena::create(2 * kMiB)->id(), Arena::create(2 * kMiB)->id()); }

TEST(ProcessArena, IsOneAndMadeOnce) {
  Arena* const arena = process_arena(64 * kMiB);
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(process_arena(), arena);
  EXPECT_EQ(process_arena(128 * kMiB)->bytes(), 64 * kMiB);
}

}  // namespace
}  // namespace tutti
