// What fork() does to the arena: the child writes for itself, the parent goes on, nobody reads the other's new data.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "arena/memory.h"
#include "device/cpu/arena.h"
#include "support/child_process.h"

namespace tutti {
namespace {

class ArenaForkTest : public testing::Test {
 protected:
  std::byte* filled(std::size_t bytes, int value) {
    auto* const data = static_cast<std::byte*>(arena_->allocate(bytes));
    std::memset(data, value, bytes);
    return data;
  }
  std::size_t resident() const { return resident_bytes(arena_->fd()); }
  // Calls enough for the arena to notice that a child has ended.
  void make_calls() {
    for (int i = 0; i < 100; ++i) arena_->deallocate(arena_->allocate(64));
  }

  std::unique_ptr<Arena> arena_ = Arena::create(64 * kMiB, 8 * kMiB);
};

TEST_F(ArenaForkTest, AChildThatWritesInPlaceLeavesTheParentAlone) {
  std::byte* const large = filled(4 * kMiB, 1);
  std::byte* const small = filled(100, 2);
  const std::size_t before = resident();
  const int code = test::run_in_child([&] {
    if (!all(large, 4 * kMiB, 1) || !all(small, 100, 2)) return 1;
    std::memset(large, 7, 4 * kMiB);
    std::memset(small, 8, 100);
    return all(large, 4 * kMiB, 7) && all(small, 100, 8) ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(all(large, 4 * kMiB, 1));
  EXPECT_TRUE(all(small, 100, 2));
  EXPECT_EQ(resident(), before);
}

TEST_F(ArenaForkTest, AChildAllocatesAndFreesForItself) {
  std::byte* const inherited = filled(4 * kMiB, 1);
  std::byte* const small = filled(100, 2);
  std::byte* const cached = filled(4 * kMiB, 3);
  arena_->deallocate(cached);
  const std::size_t before = resident();
  const int code = test::run_in_child([&] {
    if (arena_->fd() != -1) return 1;
    if (arena_->offset_of(inherited, 1) != kNotMapped || !arena_->contains(inherited)) return 2;
    arena_->deallocate(inherited);
    arena_->deallocate(small);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::byte*> blocks;
      for (int i = 0; i < 8; ++i) {
        auto* const data = static_cast<std::byte*>(arena_->allocate(i % 2 == 0 ? 4 * kMiB : 100));
        if (data == nullptr) return 3;
        std::memset(data, i, i % 2 == 0 ? 4 * kMiB : 100);
        blocks.push_back(data);
      }
      for (int i = 0; i < 8; ++i) {
        if (!all(blocks[static_cast<std::size_t>(i)], i % 2 == 0 ? 4 * kMiB : 100, i)) return 4;
        arena_->deallocate(blocks[static_cast<std::size_t>(i)]);
      }
      if (arena_->bytes_cached() > 10 * kMiB) return 5;
    }
    return arena_->bytes_in_use() == 0 ? 0 : 6;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(resident(), before) << "the child's memory is not the parent's";
  EXPECT_TRUE(all(inherited, 4 * kMiB, 1));
  EXPECT_TRUE(all(small, 100, 2));
  EXPECT_EQ(arena_->bytes_in_use(), 4 * kMiB + 128);
}

TEST_F(ArenaForkTest, AGrandchildLeavesTheChildAlone) {
  std::byte* const data = filled(kMiB, 1);
  const int code = test::run_in_child([&] {
    std::memset(data, 2, kMiB);
    const int inner = test::run_in_child([&] {
      if (!all(data, kMiB, 2)) return 1;
      std::memset(data, 3, kMiB);
      return arena_->allocate(kMiB) != nullptr ? 0 : 2;
    });
    return inner == 0 && all(data, kMiB, 2) ? 0 : 10 + inner;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(all(data, kMiB, 1));
}

TEST_F(ArenaForkTest, WhatAChildStillOwnsIsNotReusedBeforeItEnds) {
  ASSERT_NE(arena_->allocate(64), nullptr);  // small blocks have their chunk, and will not take it from what is freed
  for (const std::size_t bytes : {kMiB, std::size_t{128}}) {
    std::byte* const data = filled(bytes, 1);
    test::Gate gate;
    test::ChildProcess child([&] { return gate.wait() && all(data, bytes, 1) ? 0 : 1; });
    arena_->deallocate(data);
    std::vector<void*> others;
    for (int i = 0; i < 100; ++i) {
      std::byte* const other = filled(bytes, 2);
      ASSERT_NE(other, data);
      if (i % 10 == 0) {
        others.push_back(other);
      } else {
        arena_->deallocate(other);
      }
    }
    gate.open();
    EXPECT_EQ(child.join(), 0) << "the child read the parent's new data";
    for (void* other : others) arena_->deallocate(other);
    make_calls();
    bool reused = false;
    others.clear();
    for (int i = 0; i < 64; ++i) {
      others.push_back(arena_->allocate(bytes));
      reused = reused || others.back() == data;
    }
    EXPECT_TRUE(reused) << bytes << " bytes: free again once the child has ended";
    for (void* other : others) arena_->deallocate(other);
  }
}

TEST_F(ArenaForkTest, BlocksBornAfterTheForkAreReusedAtOnce) {
  test::Gate gate;
  test::ChildProcess child([&] { return gate.wait() ? 0 : 1; });
  std::byte* const data = filled(kMiB, 1);
  arena_->deallocate(data);
  EXPECT_EQ(arena_->allocate(kMiB), data);
  gate.open();
  EXPECT_EQ(child.join(), 0);
}

TEST_F(ArenaForkTest, HeldBlocksAreFoundWhenTheArenaWouldBeFull) {
  void* const data = arena_->allocate(48 * kMiB);
  {
    test::Gate gate;
    test::ChildProcess child([&] { return gate.wait() ? 0 : 1; });
    arena_->deallocate(data);
    EXPECT_EQ(arena_->allocate(48 * kMiB), nullptr);
    gate.open();
    EXPECT_EQ(child.join(), 0);
  }
  EXPECT_EQ(arena_->allocate(48 * kMiB), data);
}

TEST_F(ArenaForkTest, AHeldBlockCanBeQuarantined) {
  std::byte* const data = filled(kMiB, 1);
  {
    test::Gate gate;
    test::ChildProcess child([&] { return gate.wait() ? 0 : 1; });
    arena_->deallocate(data);
    arena_->quarantine(data);
    gate.open();
    EXPECT_EQ(child.join(), 0);
  }
  make_calls();
  EXPECT_NE(arena_->allocate(kMiB), data);
  EXPECT_EQ(arena_->bytes_quarantined(), kMiB);
}

TEST_F(ArenaForkTest, AForkAmidOtherThreadsCallsLeavesNoLockBehind) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    // relaxed: the flag carries no data
    while (!stop.load(std::memory_order_relaxed)) {
      void* const data = arena_->allocate(100'000);
      arena_->offset_of(data, 1);
      arena_->deallocate(data);
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(test::run_in_child([&] {
                void* const data = arena_->allocate(100'000);
                if (data == nullptr) return 1;
                std::memset(data, 1, 100'000);
                arena_->deallocate(data);
                return 0;
              }),
              0);
  }
  stop.store(true, std::memory_order_relaxed);
  busy.join();
}

TEST_F(ArenaForkTest, APeersMappingIsOutOfTheChildsReach) {
  std::byte* const data = filled(kMiB, 1);
  const std::uint64_t offset = arena_->offset_of(data, kMiB);
  const auto peer = PeerArena::open(arena_->fd(), arena_->id(), arena_->bytes());
  ASSERT_NE(peer, nullptr);
  const int code = test::run_in_child([&] {
    // Handing the address to a system call tells whether it can be read without dying of it.
    test::Gate gate;
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    if (::write(ends[1], peer->data() + offset, 1) != -1 || errno != EFAULT) return 2;
    return PeerArena::open(ends[0], 1, kMiB) == nullptr ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(peer->data()[offset], std::byte{1}) << "the parent's mapping still works";
}

TEST_F(ArenaForkTest, TheProcessArenaIsNotMadeInAChild) {
  // In a process of its own, since the parent may have made its process arena already.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const bool forked = forked_child();  // the library is in use before the fork
        const int code = test::run_in_child([] { return process_arena() == nullptr ? 0 : 1; });
        ::_exit(forked ? 2 : code);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ArenaForkTest, ForksLeakNoDescriptor) {
  const auto lowest_free = [] {
    const int fd = ::dup(0);
    ::close(fd);
    return fd;
  };
  test::run_in_child([] { return 0; });
  const int before = lowest_free();
  for (int i = 0; i < 20; ++i) test::run_in_child([] { return 0; });
  EXPECT_EQ(lowest_free(), before);
}

}  // namespace
}  // namespace tutti
