// What a call has lent to its peers and lost: from then on it is the owner's alone, with its content.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "arena/memory.h"
#include "base/mapping.h"
#include "device/cpu/arena.h"
#include "support/child_process.h"

namespace tutti {
namespace {

class LentMemoryTest : public testing::Test {
 protected:
  std::byte* filled(std::size_t bytes, int value) {
    auto* const data = static_cast<std::byte*>(arena_->allocate(bytes));
    std::memset(data, value, bytes);
    return data;
  }
  void take_back(std::byte* data, std::size_t bytes, bool done) {
    const std::span<std::byte> lent(data, bytes);
    arena_->take_back({&lent, 1}, done);
  }
  // Where a peer has the same memory.
  std::byte* at_peer(const std::byte* data) { return peer_->data() + (data - begin_); }

  std::unique_ptr<Arena> arena_ = Arena::create(64 * kMiB);
  std::shared_ptr<PeerArena> peer_ = PeerArena::open(arena_->fd(), arena_->id(), arena_->bytes());
  std::byte* const first_ = filled(64, 0);
  std::byte* const begin_ = first_ - arena_->offset_of(first_, 64);
};

TEST_F(LentMemoryTest, OfACallThatEndsWellStaysMapped) {
  std::byte* const data = filled(kMiB, 1);
  EXPECT_EQ(arena_->lend(data, kMiB), static_cast<std::uint64_t>(data - begin_));
  take_back(data, kMiB, true);
  at_peer(data)[5] = std::byte{9};
  EXPECT_EQ(data[5], std::byte{9});
  EXPECT_NE(arena_->offset_of(data, kMiB), kNotMapped);
  EXPECT_EQ(arena_->bytes_quarantined(), 0U);
}

TEST_F(LentMemoryTest, OfACallThatFailedNoPeerChangesAnyMore) {
  std::byte* const data = filled(5 * kMiB, 1);
  std::byte* const part = data + kMiB + 100;  // pages of it hold more of the block
  const std::size_t bytes = 2 * kMiB + 1000;
  ASSERT_NE(arena_->lend(part, bytes), kNotMapped);
  at_peer(part)[7] = std::byte{2};  // while the call runs
  take_back(part, bytes, false);
  EXPECT_EQ(part[7], std::byte{2});
  part[7] = std::byte{1};
  EXPECT_TRUE(all(data, 5 * kMiB, 1));
  std::memset(at_peer(part), 77, bytes);
  EXPECT_TRUE(all(data, 5 * kMiB, 1));
  std::memset(data, 3, 5 * kMiB);
  EXPECT_TRUE(all(at_peer(part) + 4096, bytes - 8192, 77)) << "nor does a peer see what the owner writes";
  EXPECT_EQ(arena_->offset_of(part, bytes), kNotMapped);
  EXPECT_EQ(arena_->offset_of(data, 10), kNotMapped) << "of the same block";
  EXPECT_EQ(arena_->lend(data, 10), kNotMapped);
  EXPECT_EQ(arena_->bytes_quarantined(), 5 * kMiB);
}

TEST_F(LentMemoryTest, OfACallThatFailedIsNeverMappedNorGivenOutAgain) {
  for (const std::size_t bytes : {kMiB, std::size_t{1000}}) {
    std::byte* const data = filled(bytes, 1);
    std::byte* const neighbour = filled(bytes, 2);
    ASSERT_NE(arena_->lend(data, bytes), kNotMapped);
    take_back(data, bytes, false);
    EXPECT_TRUE(all(data, bytes, 1));
    EXPECT_TRUE(all(neighbour, bytes, 2));
    // What shares a page with it peers would look for in the file, where it is no more.
    EXPECT_EQ(arena_->offset_of(neighbour, bytes) == kNotMapped, bytes < 4096);
    arena_->deallocate(data);
    arena_->deallocate(neighbour);
    for (int i = 0; i < 20; ++i) {
      auto* const other = static_cast<std::byte*>(arena_->allocate(bytes));
      ASSERT_NE(other, nullptr);
      ASSERT_TRUE(other + bytes <= data || data + bytes <= other);
      ASSERT_NE(arena_->offset_of(other, bytes), kNotMapped) << "all that is given out can be mapped";
    }
  }
}

TEST_F(LentMemoryTest, GivesItsMemoryBackWhenItIsFreed) {
  std::byte* const data = filled(32 * kMiB, 1);
  ASSERT_NE(arena_->lend(data, 16 * kMiB), kNotMapped);
  take_back(data, 16 * kMiB, false);
  arena_->deallocate(data);
  EXPECT_TRUE(all(data, 32 * kMiB, 0));  // pages of neither kind are left
}

TEST_F(LentMemoryTest, WaitsForTheCallsOfOtherGroups) {
  std::byte* const data = filled(kMiB, 1);
  const std::size_t half = kMiB / 2 + 100;  // the two share a page
  ASSERT_NE(arena_->lend(data, half), kNotMapped);
  ASSERT_NE(arena_->lend(data + half, kMiB - half), kNotMapped);
  testing::internal::CaptureStderr();
  take_back(data, half, false);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("stay shared until"), std::string::npos);
  at_peer(data + half)[0] = std::byte{5};  // the other call's peers are still served
  EXPECT_EQ(data[half], std::byte{5});
  EXPECT_EQ(arena_->lend(data, 10), kNotMapped) << "but it is lent no more";
  take_back(data + half, kMiB - half, true);
  std::memset(at_peer(data), 77, kMiB);
  EXPECT_TRUE(all(data, half, 1));
  EXPECT_EQ(data[half], std::byte{5});
  EXPECT_EQ(data[kMiB - 1], std::byte{77}) << "pages of the other call alone stay as they are";
}

TEST_F(LentMemoryTest, WhatSharesAPageWithItIsLentNoMoreMeanwhile) {
  constexpr std::size_t kBytes = 1000;
  std::byte* const lost = filled(kBytes, 1);
  std::byte* const lent = filled(kBytes, 2);
  std::byte* const beside = filled(kBytes, 3);
  ASSERT_EQ(arena_->offset_of(lost, 1) / 4096, arena_->offset_of(beside, kBytes) / 4096);
  ASSERT_NE(arena_->lend(lost, kBytes), kNotMapped);
  ASSERT_NE(arena_->lend(lent, kBytes), kNotMapped);
  testing::internal::CaptureStderr();
  take_back(lost, kBytes, false);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("stay shared until"), std::string::npos);
  EXPECT_EQ(arena_->lend(beside, kBytes), kNotMapped) << "else the page would stay shared for longer";
  take_back(lent, kBytes, true);
  std::memset(at_peer(lost), 77, kBytes);
  EXPECT_TRUE(all(lost, kBytes, 1));
}

TEST_F(LentMemoryTest, TwoLoansOfOneTensorAreLostTogether) {
  std::byte* const data = filled(kMiB, 1);
  ASSERT_NE(arena_->lend(data, kMiB), kNotMapped);  // as input and as output
  ASSERT_NE(arena_->lend(data, kMiB), kNotMapped);
  testing::internal::CaptureStderr();
  const std::array<std::span<std::byte>, 2> both{{{data, kMiB}, {data, kMiB}}};
  arena_->take_back(both, false);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  data[3] = std::byte{4};
  std::memset(at_peer(data), 77, kMiB);
  EXPECT_EQ(data[3], std::byte{4});
  EXPECT_TRUE(all(data + 4, kMiB - 4, 1));
}

TEST_F(LentMemoryTest, KeepsWhatOtherThreadsWriteMeanwhile) {
  std::byte* const data = filled(8 * kMiB, 0);
  ASSERT_NE(arena_->lend(data, 8 * kMiB), kNotMapped);
  std::atomic<bool> stop{false};
  std::size_t writes = 0;
  auto* const counters = reinterpret_cast<std::atomic<std::uint32_t>*>(data);
  constexpr std::size_t kStep = 4096 / sizeof(std::uint32_t);
  std::thread writer([&] {
    // relaxed: one thread counts.
    while (!stop.load(std::memory_order_relaxed) || writes == 0) {
      for (std::size_t page = 0; page < 2048; ++page) counters[page * kStep].fetch_add(1, std::memory_order_relaxed);
      ++writes;
    }
  });
  take_back(data, 8 * kMiB, false);
  stop.store(true, std::memory_order_relaxed);
  writer.join();
  for (std::size_t page = 0; page < 2048; ++page) ASSERT_EQ(counters[page * kStep].load(), writes) << page;
}

TEST_F(LentMemoryTest, AForkedChildHasItsContent) {
  std::byte* const data = filled(4 * kMiB, 1);
  ASSERT_NE(arena_->lend(data + kMiB, kMiB), kNotMapped);
  take_back(data + kMiB, kMiB, false);
  std::memset(data, 2, 4 * kMiB);
  const int code = test::run_in_child([&] {
    if (!all(data, 4 * kMiB, 2)) return 1;
    std::memset(data, 3, 4 * kMiB);
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(all(data, 4 * kMiB, 2));
}

// From here on the kernel refuses private views of files in a chosen place, as without memory.
bool refuse_private_views() {
  constexpr std::uint32_t kFlags = MAP_PRIVATE | MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS;
  std::array<sock_filter, 7> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args) + 3 * sizeof(std::uint64_t)),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, kFlags),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAP_PRIVATE | MAP_FIXED, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Runs in a program of its own.
[[noreturn]] void lose_without_memory() {
  const auto arena = Arena::create(64 * kMiB);
  const auto peer = PeerArena::open(arena->fd(), arena->id(), arena->bytes());
  auto* const data = static_cast<std::byte*>(arena->allocate(16 * kMiB));
  const std::uint64_t offset = arena->lend(data, 16 * kMiB);
  std::memset(data, 1, 16 * kMiB);
  if (!refuse_private_views()) ::_exit(10);
  const std::span<std::byte> lent(data, 16 * kMiB);
  arena->take_back({&lent, 1}, false);  // says so
  if (!all(data, 16 * kMiB, 1)) ::_exit(11);
  peer->data()[offset] = std::byte{9};
  if (data[0] != std::byte{9}) ::_exit(12);  // nothing was refused: the test shows nothing
  if (arena->offset_of(data, 1) != kNotMapped) ::_exit(13);
  arena->deallocate(data);
  auto* const other = static_cast<std::byte*>(arena->allocate(16 * kMiB));
  ::_exit(other == nullptr || other >= data + 16 * kMiB || data >= other + 16 * kMiB ? 0 : 14);
}

TEST(LentMemory, WithoutMemoryForItsPagesItIsQuarantinedAndSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(lose_without_memory(), testing::ExitedWithCode(0),
              "16777216 bytes of a failed call stay shared, for there is no memory");
}

}  // namespace
}  // namespace tutti
