// Communicators that do not block: their groups form while the program asks whether they are ready.
#include <thread>

#include "nccl_ranks.h"

namespace nccl_test {
namespace {

std::array<float, 64> buffer;

ncclResult_t all_reduce(ncclComm_t comm, size_t count) {
  return ncclAllReduce(buffer.data(), buffer.data(), count, ncclFloat32, ncclSum, comm, nullptr);
}

ncclComm_t begun(const Rank& rank) {
  const ncclComm_t comm = begin_without_blocking(rank.size(), rank.id(), rank.rank());
  by_nccl();
  return comm;
}

void await(ncclComm_t comm) {
  ncclResult_t now = ncclInProgress;
  while (now == ncclInProgress) {
    now = state(comm);
    std::this_thread::yield();
  }
  EXPECT_EQ(now, ncclSuccess);
}

void goes_to_nccl(ncclComm_t comm) {
  EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
  EXPECT_EQ(by_nccl(), "AllReduce:1");
}

void sleep_until_woken(const Rank& rank, int number = 0) {
  char byte = 0;
  EXPECT_EQ(::read(rank.wake_fd(number), &byte, 1), 1);
}

TEST(NcclPending, FormsWhileTheProgramAsks) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "90000", 1);
    const ncclComm_t comm = begun(rank);
    // Rank 0 asks, and hears at once, while rank 1 does not yet: twice of NCCL's, then of Tutti's.
    if (rank.rank() == 1) sleep_until_woken(rank);
    for (int i = 0; rank.rank() == 0 && i < 10; ++i) EXPECT_EQ(state(comm), ncclInProgress);
    if (rank.rank() == 0) {
      // A call now would run where the others may not run it.
      EXPECT_EQ(all_reduce(comm, 1), ncclInvalidArgument);
      EXPECT_NE(std::string(ncclGetLastError(comm)).find("in progress"), std::string::npos);
      EXPECT_EQ(by_nccl(), "");
      rank.wake();
    }
    await(comm);
    EXPECT_EQ(all_reduce(comm, 2), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:2");
    EXPECT_TRUE(blocked_signals());  // a signal belongs to the program's own threads
    // Parts are NCCL's, on all ranks at once.
    ncclComm_t part = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 0, rank.rank(), &part, nullptr), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(part, 3), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllReduce:3");
    EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
    await(comm);
    EXPECT_EQ(all_reduce(comm, 4), ncclSuccess);
    EXPECT_EQ(by_nccl(), "CommFinalize AllReduce:4");
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

// Rank 0 makes its operation before it asks, rank 1 behind that: the call is Tutti's on both.
TEST(NcclPending, OperationsMadeMeanwhileStay) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "90000", 1);
    const ncclComm_t comm = begun(rank);
    float twice = 2;
    ncclRedOp_t op = ncclSum;
    if (rank.rank() == 1) await(comm);
    EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, &twice, ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
    if (rank.rank() == 0) await(comm);
    EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 4, ncclFloat32, op, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "");
    EXPECT_EQ(by_tutti(), "all_reduce:4*2");
    EXPECT_EQ(ncclRedOpDestroy(op, comm), ncclSuccess);
  });
}

// Kernels that wait for a rank which never comes: the program's watchdog still ends them.
TEST(NcclPending, AbortEndsWhatAFinalizedOneStillRuns) {
  run_ranks(2, [](Rank& rank) {
    std::array<int, 2> hangs{};
    ASSERT_EQ(::pipe(hangs.data()), 0);
    ::setenv("FAKE_HANGS", std::to_string(hangs[1]).c_str(), 1);
    const ncclComm_t comm = begun(rank);
    await(comm);
    EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
    char byte = 0;
    ASSERT_EQ(::read(hangs[0], &byte, 1), 1);  // its kernels are waited for
    for (int i = 0; i < 3; ++i) EXPECT_EQ(state(comm), ncclInProgress);
    EXPECT_EQ(all_reduce(comm, 1), ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    ASSERT_EQ(::read(hangs[0], &byte, 1), 1);  // it has ended
    EXPECT_EQ(by_nccl(), "CommFinalize CommAbort");
  });
}

// Code of the process that ends later finds none of the library's threads at work, and wakes rank 1.
const Rank* ending = nullptr;
void look_at_exit(const Rank& rank) {
  ending = &rank;
  ASSERT_EQ(std::atexit([] {
              if (tutti_works()) ::_exit(3);
              ending->wake();
            }),
            0);
}

// Rank 1 does not make its part before rank 0 has ended, which would wait for it for half an hour.
TEST(NcclPending, ExitEndsWhatForms) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "600000", 1);
    ::setenv("TUTTI_CUDA_WATCHDOG", "none", 1);
    if (rank.rank() == 1) ::setenv("FAKE_LATE_FD", std::to_string(rank.wake_fd()).c_str(), 1);
    if (rank.rank() == 0) look_at_exit(rank);
    const ncclComm_t comm = begun(rank);
    if (rank.rank() == 1) {
      await(comm);
      return goes_to_nccl(comm);
    }
    while (!tutti_works()) state(comm);
    if (!testing::Test::HasFailure()) std::exit(0);
  });
}

// Kernels that wait for a rank which never comes are given two seconds.
TEST(NcclPending, ExitEndsWhatAFinalizedOneStillRuns) {
  run_ranks(2, [](Rank& rank) {
    std::array<int, 2> hangs{};
    ASSERT_EQ(::pipe(hangs.data()), 0);
    ::setenv("FAKE_HANGS", std::to_string(hangs[1]).c_str(), 1);
    ::setenv("TUTTI_CUDA_WATCHDOG", "none", 1);
    look_at_exit(rank);
    const ncclComm_t comm = begun(rank);
    await(comm);
    EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
    char byte = 0;
    ASSERT_EQ(::read(hangs[0], &byte, 1), 1);  // its kernels are waited for
    if (!testing::Test::HasFailure()) std::exit(0);
  });
}

TEST(NcclPending, WhatHasFailedIsSaidBehindItsEnd) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = begun(rank);
    await(comm);
    fail_tutti();
    EXPECT_EQ(ncclCommFinalize(comm), ncclRemoteError);
    ncclResult_t now = ncclInProgress;
    while (now == ncclInProgress) now = state(comm);
    EXPECT_EQ(now, ncclRemoteError);
    EXPECT_STREQ(ncclGetLastError(comm), "tutti: rank 1 is gone");
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST(NcclPending, ARankThatDoesNotAskDecidesForNccl) {
  for (const int silent : {0, 1}) {
    run_ranks(2, [&](Rank& rank) {
      ::setenv("TUTTI_NCCL_PATIENCE_MS", "90000", 1);
      const ncclComm_t comm = begun(rank);
      if (rank.rank() != silent) await(comm);
      EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
      EXPECT_EQ(all_reduce(comm, 2), ncclSuccess);
      EXPECT_EQ(by_nccl(), "AllReduce:1 AllReduce:2");
      EXPECT_EQ(by_tutti(), "");
      // Its refusal is said in the background: it goes on until the other one has heard.
      if (rank.rank() == silent) {
        sleep_until_woken(rank);
      } else {
        rank.wake();
      }
    });
  }
}

// NCCL's own variable says what blocks, over the call.
TEST(NcclPending, AsNcclsVariableSays) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "90000", 1);
    ::setenv("NCCL_COMM_BLOCKING", "0", 1);
    const ncclComm_t silent = rank.communicator(), asked = rank.communicator();
    await(asked);
    EXPECT_EQ(all_reduce(asked, 1), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1");
    goes_to_nccl(silent);
    EXPECT_EQ(by_tutti(), "");
  });
}

// Their kernels would wait for each other if they lay on one GPU; where they do lie is not known yet.
TEST(NcclPending, SeveralInAGroupOfCallsAreLeftToNccl) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_PATIENCE_MS", "90000", 1);
    const std::array<ncclUniqueId, 2> ids = {rank.id(), rank.id()};
    std::array<ncclComm_t, 2> comms{};
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (size_t i = 0; i < 2; ++i) begin_without_blocking(&comms[i], 2, ids[i], rank.rank());
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    by_nccl();
    for (const ncclComm_t comm : comms) await(comm);
    for (const ncclComm_t comm : comms) goes_to_nccl(comm);
    EXPECT_EQ(by_tutti(), "");
  });
}

// NCCL reads its files as it makes its first communicator.
TEST(NcclPending, AsNcclsFilesSay) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("STAND_IN_FILE_BLOCKING", "1", 1);
    const ncclComm_t comm = begin_without_blocking(2, rank.id(), rank.rank(), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);  // nobody has asked whether it is ready
    EXPECT_EQ(by_tutti(), "all_reduce:1");
  });
  run_ranks(2, [](Rank& rank) {
    ::setenv("STAND_IN_FILE_BLOCKING", "0", 1);
    goes_to_nccl(rank.communicator());
  });
}

TEST(NcclPending, WhatIsGivenUpIsNotServedByOthers) {
  for (const bool abort : {false, true}) {
    run_ranks(2, [&](Rank& rank) {
      const ncclComm_t comm = begun(rank);
      if (rank.rank() == 0) {
        for (int i = 0; i < 5; ++i) EXPECT_EQ(state(comm), ncclInProgress);
        EXPECT_EQ(abort ? ncclCommAbort(comm) : ncclCommDestroy(comm), ncclSuccess);
        rank.wake();
        sleep_until_woken(rank, 1);  // it lives on, and with it the store
        return;
      }
      sleep_until_woken(rank);
      await(comm);
      goes_to_nccl(comm);
      rank.wake(1);
    });
  }
}

}  // namespace
}  // namespace nccl_test
