// Several ranks in one process: made at once, in a group of calls or by threads, and driven by one thread or by
// several.
#include <thread>

#include "nccl_ranks.h"

namespace nccl_test {
namespace {

std::array<float, 64> buffer;

ncclResult_t all_reduce(ncclComm_t comm, size_t count) {
  return ncclAllReduce(buffer.data(), buffer.data(), count, ncclFloat32, ncclSum, comm, nullptr);
}

// Ranks `first`, `first + 1`, ... of one communicator, in one group of calls, each on a device of its own.
std::vector<ncclComm_t> in_one_group(const ncclUniqueId& id, int first, int count, int size) {
  std::vector<ncclComm_t> comms(static_cast<size_t>(count));
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < count; ++r) {
    on_device(r);
    EXPECT_EQ(ncclCommInitRank(&comms[static_cast<size_t>(r)], size, id, first + r), ncclSuccess);
  }
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  by_nccl();
  return comms;
}

TEST(NcclInOneProcess, ByOneThreadInAGroupOfCalls) {
  run_ranks(1, [](Rank& rank) {
    const std::vector<ncclComm_t> comms = in_one_group(rank.id(), 0, 3, 3);
    EXPECT_TRUE(blocked_signals());
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    // Rank by rank, as programs do: issued call by call, since a call waits for its other ranks.
    for (const ncclComm_t comm : comms) {
      EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
      EXPECT_EQ(all_reduce(comm, 2), ncclSuccess);
    }
    EXPECT_EQ(by_tutti(), "");
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1 all_reduce:1@1 all_reduce:1@2 all_reduce:2 all_reduce:2@1 all_reduce:2@2");
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd");
    for (const ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST(NcclInOneProcess, AllAtOnce) {
  run_ranks(1, [](Rank&) {
    std::array<ncclComm_t, 4> comms{};
    // The stand-in does so by its own public names, which come here and go straight back.
    ASSERT_EQ(ncclCommInitAll(comms.data(), 4, nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd CommInitAll");
    for (const ncclComm_t comm : comms) EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1 all_reduce:1@1 all_reduce:1@2 all_reduce:1@3");
    // And inside a group, whose end makes them.
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclCommInitAll(comms.data(), 2, nullptr), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(comms[1], 2), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:2@1");
    // More than Tutti serves, and a single one.
    std::array<ncclComm_t, 9> many{};
    for (const int count : {9, 1}) {
      ASSERT_EQ(ncclCommInitAll(many.data(), count, nullptr), ncclSuccess);
      by_nccl();
      EXPECT_EQ(all_reduce(many[0], 3), ncclSuccess);
      EXPECT_EQ(by_nccl(), "AllReduce:3");
    }
  });
}

TEST(NcclInOneProcess, ByThreads) {
  run_ranks(1, [](Rank& rank) {
    const ncclUniqueId id = rank.id();
    std::array<ncclComm_t, 3> comms{};
    std::array<std::thread, 3> threads;
    for (int r = 0; r < 3; ++r) {
      const auto at = static_cast<size_t>(r);
      threads[at] = std::thread([&, r, at] {
        on_device(r);
        EXPECT_EQ(ncclCommInitRank(&comms[at], 3, id, r), ncclSuccess);
        for (int i = 0; i < 50; ++i) {
          EXPECT_EQ(ncclGroupStart(), ncclSuccess);
          EXPECT_EQ(all_reduce(comms[at], 1), ncclSuccess);
          EXPECT_EQ(all_reduce(comms[at], size_t{1} << 30), ncclSuccess);
          EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        }
        EXPECT_EQ(ncclCommDestroy(comms[at]), ncclSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
    size_t ours = 0;
    for (const char c : by_tutti()) ours += c == ':';
    EXPECT_EQ(ours, 150);
  });
}

// Two processes of two ranks, and the halves of their communicator, which are made in a group, too.
TEST(NcclInOneProcess, AndInSeveral) {
  run_ranks(2, [](Rank& process) {
    const std::vector<ncclComm_t> comms = in_one_group(process.id(), 2 * process.rank(), 2, 4);
    for (const ncclComm_t comm : comms) EXPECT_EQ(all_reduce(comm, 4), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:4 all_reduce:4@1");
    std::array<ncclComm_t, 2> halves{};
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (size_t r = 0; r < 2; ++r) {
      // Each half has a rank in each process.
      on_device(static_cast<int>(r));
      ::setenv("STAND_IN_SPLIT", (std::to_string(process.rank()) + ",2").c_str(), 1);
      EXPECT_EQ(ncclCommSplit(comms[r], static_cast<int>(r), process.rank(), &halves[r], nullptr), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    by_nccl();
    for (const ncclComm_t comm : halves) EXPECT_EQ(all_reduce(comm, 5), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:5 all_reduce:5@1");
    EXPECT_EQ(by_nccl(), "");
  });
}

// They would wait for each other on the GPU; nobody waits for a rank that refuses.
TEST(NcclInOneProcess, SeveralCommunicatorsOnAGpuInAGroupAreLeftToNccl) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "600000", 1);
    const ncclUniqueId one = rank.id(), two = rank.id();
    std::array<ncclComm_t, 3> comms{};
    comms[2] = rank.communicator();
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    // In another order on each rank.
    const std::array<const ncclUniqueId*, 2> ids = {&one, &two};
    for (size_t i = 0; i < 2; ++i) {
      const size_t at = rank.rank() == 0 ? i : 1 - i;
      ASSERT_EQ(ncclCommInitRank(&comms[at], 2, *ids[at], rank.rank()), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    std::array<ncclComm_t, 2> parts{};
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (ncclComm_t& part : parts) {
      ASSERT_EQ(ncclCommSplit(comms[2], 0, rank.rank(), &part, nullptr), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    by_nccl();
    for (const ncclComm_t comm : {comms[0], comms[1], parts[0], parts[1]}) {
      EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    }
    EXPECT_EQ(by_nccl(), "AllReduce:1 AllReduce:1 AllReduce:1 AllReduce:1");
    EXPECT_EQ(all_reduce(comms[2], 1), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1");
  });
}

}  // namespace
}  // namespace nccl_test
