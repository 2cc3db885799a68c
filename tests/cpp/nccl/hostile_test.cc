// What may go wrong between the ranks, and in a process: late ranks, settings of one rank, forks, many ranks. NCCL's
// own calls must go on as if Tutti were not there.
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "nccl_ranks.h"

#if defined(__SANITIZE_ADDRESS__)
namespace {
bool forked = false;
}
// The leak checker does not see the memory of threads that a forked child has not got.
extern "C" int __lsan_is_turned_off() { return forked ? 1 : 0; }
#endif

namespace nccl_test {
namespace {

std::array<float, 64> buffer;

ncclResult_t all_reduce(ncclComm_t comm, size_t count) {
  return ncclAllReduce(buffer.data(), buffer.data(), count, ncclFloat32, ncclSum, comm, nullptr);
}

void goes_to_nccl(ncclComm_t comm) {
  EXPECT_EQ(all_reduce(comm, 4), ncclSuccess);
  EXPECT_EQ(by_nccl(), "AllReduce:4");
  EXPECT_EQ(by_tutti(), "");
}

int listening_sockets() {
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0) ++found;
  }
  return found;
}

// Far beyond the test's own bound: who waits for it fails.
void wait_for_ever() { ::setenv("TUTTI_NCCL_PATIENCE_MS", "600000", 1); }

// Rank 0 has all it needs for a yes, but only after rank 1 has given up: then it must hear the no of rank 1.
TEST(NcclHostile, ARankThatComesTooLateDoesNotDecideAlone) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "100", 1);
    if (rank.rank() == 0) ::setenv("FAKE_WAIT_FD", std::to_string(rank.wake_fd()).c_str(), 1);
    const ncclComm_t comm = rank.communicator();
    if (rank.rank() == 1) rank.wake();
    goes_to_nccl(comm);
  });
}

TEST(NcclHostile, WhatALateRankOffersInVainEnds) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "1000", 1);  // a quarter is for rank 1 to reach the place
    const ncclUniqueId id = rank.id();
    char woken = 0;
    if (rank.rank() == 0) ASSERT_EQ(::read(rank.wake_fd(), &woken, 1), 1);
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank.rank()), ncclSuccess);
    if (rank.rank() == 1) rank.wake();
    by_nccl();
    goes_to_nccl(comm);
    ASSERT_EQ(ncclCommDestroy(comm), ncclSuccess);
    EXPECT_EQ(listening_sockets(), 0);  // neither where the ranks met nor where rank 0 wanted to go on
  });
}

TEST(NcclHostile, ASettingThatOneRankCannotReadKeepsNobodyWaiting) {
  for (const int bad : {0, 1}) {
    run_ranks(2, [&](Rank& rank) {
      if (rank.rank() == bad) ::setenv("TUTTI_NCCL_MAX_BYTES", "much", 1);
      if (rank.rank() != bad) wait_for_ever();
      goes_to_nccl(rank.communicator());
    });
  }
}

TEST(NcclHostile, SettingsOfOneRankThatKernelsMustAgreeOn) {
  for (const char* const variable : {"TUTTI_CUDA_ALGORITHM=ll_one_shot", "TUTTI_CUDA_TRANSPORT=peer"}) {
    run_ranks(2, [&](Rank& rank) {
      const char* const equal = std::strchr(variable, '=');
      if (rank.rank() == 1) ::setenv(std::string(variable, equal).c_str(), equal + 1, 1);
      wait_for_ever();
      goes_to_nccl(rank.communicator());
    });
  }
}

// NCCL's variables of one rank, set where NCCL's own files would set them: behind its start.
TEST(NcclHostile, WhereNcclMayNotReachPeersTuttiDoesNot) {
  const auto run = [](const char* name, const char* value, bool served) {
    run_ranks(2, [&](Rank& rank) {
      wait_for_ever();
      const ncclUniqueId id = rank.id();
      if (rank.rank() == 1) ::setenv(name, value, 1);
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank.rank()), ncclSuccess);
      by_nccl();
      EXPECT_EQ(all_reduce(comm, 4), ncclSuccess);
      EXPECT_EQ(by_nccl(), served ? "" : "AllReduce:4") << name << "=" << value;
      EXPECT_EQ(by_tutti(), served ? "all_reduce:4" : "") << name << "=" << value;
    });
  };
  run("NCCL_P2P_DISABLE", "1", false);
  run("NCCL_P2P_DISABLE", "0", true);
  for (const char* const level : {"LOC", "NVL", "PHB", "0", "3"}) run("NCCL_P2P_LEVEL", level, false);
  for (const char* const level : {"SYS", "4", "nonsense", ""}) run("NCCL_P2P_LEVEL", level, true);
}

TEST(NcclHostile, RanksOnSeveralHosts) {
  run_ranks(2, [](Rank& rank) {
    wait_for_ever();
    if (rank.rank() == 1) ::setenv("TUTTI_HOST_ID", "another", 1);
    goes_to_nccl(rank.communicator());
  });
}

// Their communicator has no group of Tutti's; its parts within the hosts have one each.
TEST(NcclHostile, PartsWithinHostsOfRanksOnSeveral) {
  run_ranks(4, [](Rank& rank) {
    wait_for_ever();
    const std::string host = std::to_string(rank.rank() / 2);
    ::setenv("TUTTI_HOST_ID", ("number" + host).c_str(), 1);
    const ncclComm_t comm = rank.communicator();
    goes_to_nccl(comm);
    ::setenv("STAND_IN_SPLIT", (std::to_string(rank.rank() % 2) + ",2").c_str(), 1);
    ncclComm_t part = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, rank.rank() / 2, rank.rank(), &part, nullptr), ncclSuccess);
    EXPECT_EQ(all_reduce(part, 3), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:3");
  });
}

TEST(NcclHostile, ARankThatHasNotTurnedItOn) {
  for (const int without : {0, 1}) {
    run_ranks(2, [&](Rank& rank) {
      ::setenv("TUTTI_NCCL_PATIENCE_MS", "100", 1);
      if (rank.rank() == without) ::unsetenv("TUTTI_NCCL");
      goes_to_nccl(rank.communicator());
    });
  }
}

TEST(NcclHostile, ARankWithoutThePlugIn) {
  for (const int without : {0, 1}) {
    run_ranks(2, [&](Rank& rank) {
      if (rank.rank() == without) ::setenv("TUTTI_PLUGIN_PATH", "/nowhere", 1);
      wait_for_ever();
      goes_to_nccl(rank.communicator());
    });
  }
}

// NCCL's id is for one communicator; whatever NCCL makes of a second one, its ranks do not meet where the first ones
// did.
TEST(NcclHostile, AnIdThatIsUsedAgain) {
  run_ranks(2, [](Rank& rank) {
    wait_for_ever();
    const ncclUniqueId id = rank.id();
    std::array<ncclComm_t, 2> comms{};
    for (ncclComm_t& comm : comms) ASSERT_EQ(ncclCommInitRank(&comm, 2, id, rank.rank()), ncclSuccess);
    by_nccl();
    goes_to_nccl(comms[1]);
    EXPECT_EQ(all_reduce(comms[0], 2), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:2");
  });
}

// Rank 0 serves the store that the parts meet at, and ends as soon as its own call has returned.
TEST(NcclHostile, ARankWithoutAPartEndsDirectlyBehindTheSplit) {
  for (const int color : {-1, 0}) {
    for (int i = 0; i < 10; ++i) {
      run_ranks(5, [&](Rank& rank) {
        const ncclComm_t comm = rank.communicator();
        ncclComm_t part = nullptr;
        // Ranks 1 and 2, 3 and 4; rank 0 has none, or is alone in its own.
        ::setenv("STAND_IN_SPLIT", rank.rank() == 0 ? "0,1" : rank.rank() % 2 == 0 ? "1,2" : "0,2", 1);
        EXPECT_EQ(ncclCommSplit(comm, rank.rank() == 0 ? color : (rank.rank() + 1) / 2, rank.rank(), &part, nullptr),
                  ncclSuccess);
        if (rank.rank() == 0) return;
        EXPECT_EQ(all_reduce(part, 3), ncclSuccess);
        EXPECT_EQ(by_tutti(), "all_reduce:3");
      });
    }
  }
}

// More ranks than Tutti serves need no meeting, nor a descriptor of each rank in the process that made the id.
TEST(NcclHostile, LargeCommunicatorsCostNothing) {
  run_ranks(1, [](Rank&) {
    wait_for_ever();
    for (const int size : {1, 9, 100'000}) {
      const int before = open_descriptors();
      ncclUniqueId id{};
      ncclComm_t comm = nullptr;
      ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
      EXPECT_GT(open_descriptors(), before);
      ASSERT_EQ(ncclCommInitRank(&comm, size, id, 0), ncclSuccess);
      EXPECT_EQ(open_descriptors(), before) << size;
      by_nccl();
      goes_to_nccl(comm);
    }
  });
}

TEST(NcclHostile, OneCallThatFailsDoesNotKeepOthersFromTheirRanks) {
  run_ranks(2, [](Rank& rank) {
    const std::array<ncclComm_t, 2> comms = {rank.communicator(), rank.communicator()};
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comms[0], 1), ncclSuccess);
    EXPECT_EQ(all_reduce(comms[1], 2), ncclSuccess);
    EXPECT_EQ(ncclCommAbort(comms[0]), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclRemoteError);
    EXPECT_EQ(by_tutti(), "all_reduce:2");
  });
}

// What the other ranks wait for is the call that failed here: the next one may look like it, with other data.
TEST(NcclHostile, BehindACallThatFailsItsCommunicatorIssuesNoOther) {
  run_ranks(2, [](Rank& rank) {
    const std::array<ncclComm_t, 2> comms = {rank.communicator(), rank.communicator()};
    ::setenv("FAKE_THROWS_AT", "3", 1);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (const size_t count : {1, 2, 3, 4}) {
      EXPECT_EQ(all_reduce(comms[0], count), ncclSuccess);
      EXPECT_EQ(all_reduce(comms[1], 10 * count), ncclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclInternalError);
    EXPECT_EQ(by_tutti(), "all_reduce:1 all_reduce:10 all_reduce:20 all_reduce:30 all_reduce:40");
    EXPECT_EQ(aborts_of_tutti(),
              "a call of this rank has failed in a group of calls: tutti: the queue of launches is gone");
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd");  // which is ended all the same
    EXPECT_NE(state(comms[0]), ncclSuccess);
    EXPECT_EQ(state(comms[1]), ncclSuccess);
  });
}

// Nor can the program know which one to make again, where there were several.
TEST(NcclHostile, TheLastOfSeveralThatFailsEndsItsCommunicatorAndOneAloneDoesNot) {
  for (const int calls : {1, 2}) {
    run_ranks(2, [&](Rank& rank) {
      const ncclComm_t comm = rank.communicator();
      ::setenv("FAKE_THROWS_AT", std::to_string(calls).c_str(), 1);
      ASSERT_EQ(ncclGroupStart(), ncclSuccess);
      for (int i = 0; i < calls; ++i) EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
      EXPECT_EQ(ncclGroupEnd(), ncclInternalError);
      EXPECT_EQ(aborts_of_tutti().empty(), calls == 1);
      EXPECT_EQ(state(comm) == ncclSuccess, calls == 1);
    });
  }
}

TEST(NcclHostile, AGroupThatCannotBeSimulatedGoesOn) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(ncclGroupSimulateEnd(nullptr), ncclInvalidUsage);
    EXPECT_EQ(by_tutti(), "");
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1");
  });
}

TEST(NcclHostile, ASimulationWithoutAPlaceForItsResultIsAnEnd) {
  run_ranks(2, [](Rank& rank) {
    for (const char* const name : {"TUTTI_NCCL_LIB_PATH", "TUTTI_TEST_STAND_IN"}) ::setenv(name, NEWER_STAND_IN, 1);
    const ncclComm_t comm = rank.communicator();
    std::array<std::uint64_t, 16> info{};
    for (const bool simulates : {true, false}) {
      ASSERT_EQ(ncclGroupStart(), ncclSuccess);
      EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
      EXPECT_EQ(ncclGroupSimulateEnd(simulates ? reinterpret_cast<ncclSimInfo_t*>(info.data()) : nullptr), ncclSuccess);
      EXPECT_EQ(by_tutti(), simulates ? "" : "all_reduce:1");
      EXPECT_EQ(by_nccl(), simulates ? "GroupStart" : "GroupStart GroupEnd");
      EXPECT_EQ(all_reduce(comm, 2), ncclSuccess);
      EXPECT_EQ(by_tutti(), "all_reduce:2");  // no group is open
    }
  });
}

TEST(NcclHostile, AForkedChildHasNccl) {
  const std::string file = testing::TempDir() + "nccl_child_" + std::to_string(::getpid());
  run_ranks(2, [&](Rank& rank) {
    ::setenv("TUTTI_NCCL_REPORT", "1", 1);
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    by_tutti();
    std::fflush(nullptr);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
#if defined(__SANITIZE_ADDRESS__)
      forked = true;
#endif
      if (rank.rank() == 0) std::freopen(file.c_str(), "w", stderr);
      goes_to_nccl(comm);
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
      EXPECT_EQ(by_nccl(), "CommDestroy");
      if (testing::Test::HasFailure()) ::_exit(1);
      std::exit(0);  // and says what it has run, and nothing of calls that it has not made
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(all_reduce(comm, 2), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:2");
  });
  std::FILE* const written = std::fopen(file.c_str(), "r");
  ASSERT_NE(written, nullptr);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), written));
  std::fclose(written);
  std::remove(file.c_str());
  EXPECT_NE(text.find("all_reduce: 0 by Tutti (0 B), 1 by NCCL"), std::string::npos) << text;
  EXPECT_EQ(text.find("communicators"), std::string::npos) << text;
}

// The other rank hears at once that it does.
TEST(NcclHostile, AForkedChildRefusesWhatDoesNotBlock) {
  run_ranks(1, [](Rank& process) {
    wait_for_ever();
    std::array<ncclComm_t, 2> before{};
    ASSERT_EQ(ncclCommInitAll(before.data(), 2, nullptr), ncclSuccess);  // Tutti is used before fork()
    const ncclUniqueId id = process.id();
    std::fflush(nullptr);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    const ncclComm_t comm = begin_without_blocking(2, id, child == 0 ? 1 : 0);
    while (state(comm) == ncclInProgress) std::this_thread::yield();
    by_nccl();
    goes_to_nccl(comm);
    if (child == 0) ::_exit(testing::Test::HasFailure() ? 1 : 0);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  });
}

// The table of what runs on Tutti, at its edges.
TEST(NcclHostile, LimitsAreWhereTheDocumentsSay) {
  for (const int size : {2, 4, 5}) {
    run_ranks(size, [](Rank& rank) {
      const ncclComm_t comm = rank.communicator();
      constexpr size_t kMegabyte = size_t{1} << 20;
      const auto n = static_cast<size_t>(rank.size());
      const size_t most = n <= 4 ? 16 * kMegabyte : kMegabyte;
      std::vector<char> memory(2 * (most + n));
      char* const data = memory.data();
      char* const apart = data + most + n;
      const auto expect = [&](ncclResult_t result, const char* by) {
        EXPECT_EQ(result, ncclSuccess) << ncclGetLastError(comm);
        const std::string who = by_nccl().empty() ? "Tutti" : "NCCL";
        by_tutti();
        EXPECT_EQ(who, by);
      };
      const auto at = [&](size_t count, const char* by) {
        expect(ncclAllReduce(data, apart, count, ncclUint8, ncclSum, comm, nullptr), by);
        expect(ncclAllGather(data, apart, count / n, ncclUint8, comm, nullptr), by);
        expect(ncclReduceScatter(data, apart, count / n, ncclUint8, ncclSum, comm, nullptr), by);
      };
      at(most / n * n, "Tutti");
      at(most / n * n + n, "NCCL");
      expect(ncclReduce(data, apart, kMegabyte / 4, ncclUint8, ncclSum, 0, comm, nullptr), "Tutti");
      expect(ncclReduce(data, apart, kMegabyte / 4 + 1, ncclUint8, ncclSum, 0, comm, nullptr), "NCCL");
    });
  }
}

}  // namespace
}  // namespace nccl_test
