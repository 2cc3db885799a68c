// Arguments at the edges of NCCL's interface, on communicators that Tutti serves. tests/python/support/nccl_edges.py
// asks NCCL itself for those that need none.
#include "nccl_ranks.h"
#include "tutti/error.h"

namespace nccl_test {
namespace {

std::array<float, 64> buffer;

void runs_on_tutti(ncclComm_t comm, size_t count) {
  EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), count, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  EXPECT_EQ(by_tutti(), "all_reduce:" + std::to_string(count));
  EXPECT_EQ(by_nccl(), "");
}

TEST(NcclEdges, SeveralIdsOfOneCommunicator) {
  run_ranks(2, [](Rank& rank) {
    const int before = open_descriptors();
    std::array<ncclUniqueId, 3> ids = {rank.id(), {}, {}};
    // Rank 1 makes none, so these differ between the ranks: NCCL asks for the same, and the first is.
    for (std::size_t i = 1; i < ids.size() && rank.rank() == 0; ++i) {
      ASSERT_EQ(ncclGetUniqueId(&ids[i]), ncclSuccess);
    }
    by_nccl();
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankScalable(&comm, 2, rank.rank(), 0, ids.data(), nullptr), ncclInvalidArgument);
    ASSERT_EQ(ncclCommInitRankScalable(&comm, 2, rank.rank(), 3, ids.data(), nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "CommInitRankScalable");
    runs_on_tutti(comm, 3);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    EXPECT_EQ(open_descriptors(), before);
  });
}

TEST(NcclEdges, OneIdSeveralTimes) {
  run_ranks(2, [](Rank& rank) {
    const ncclUniqueId id = rank.id();
    std::array<ncclUniqueId, 2> ids = {id, id};
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankScalable(&comm, 2, rank.rank(), 2, ids.data(), nullptr), ncclSuccess);
    by_nccl();
    runs_on_tutti(comm, 3);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST(NcclEdges, WhatNcclRefusesToRevokeGoesOn) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(ncclCommRevoke(comm, 3), ncclInvalidArgument);
    runs_on_tutti(comm, 1);
    EXPECT_EQ(ncclCommRevoke(nullptr, 0), ncclSuccess);
    by_nccl();
    runs_on_tutti(comm, 2);
    EXPECT_EQ(ncclCommRevoke(comm, 0), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 3, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "CommRevoke AllReduce:3");
  });
}

// A group that a communicator was given up in keeps what it holds.
TEST(NcclEdges, DestroyedInsideAGroupOfCalls) {
  run_ranks(2, [](Rank& rank) {
    const std::array<ncclComm_t, 2> comms = {rank.communicator(), rank.communicator()};
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (const ncclComm_t comm : comms) {
      EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    }
    EXPECT_EQ(ncclCommFinalize(comms[0]), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comms[0]), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:4 all_reduce:4");
    EXPECT_EQ(by_nccl(), "GroupStart CommFinalize CommDestroy GroupEnd");
    runs_on_tutti(comms[1], 5);
  });
}

// Of two ranks: rank 1's block lies behind rank 0's.
TEST(NcclEdges, BuffersThatOverlap) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    float* const data = buffer.data();
    float* const mine = data + 4 * rank.rank();
    // Not as calls in place do. NCCL runs them, nccl-tests an all-to-all among them, and so the ranks stay together.
    EXPECT_EQ(ncclAllReduce(data, data + 1, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclAllGather(data + 1, data, 4, ncclFloat32, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclReduceScatter(data, data + 1, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclAlltoAll(data, data, 4, ncclFloat32, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:4 all_gather:4 reduce_scatter:4 all_to_all:4");
    // In place.
    EXPECT_EQ(ncclAllGather(mine, data, 4, ncclFloat32, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclReduceScatter(data, mine, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_gather:4 reduce_scatter:4");
    EXPECT_EQ(by_nccl(), "");
  });
}

// Which this NCCL has not.
TEST(NcclEdges, CallsWithOptionsAreNccls) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    const std::array<std::uint64_t, 16> options{};
    EXPECT_EQ(ncclAllReduceConfig(buffer.data(), buffer.data(), 4, ncclFloat32, ncclSum, comm, nullptr,
                                  reinterpret_cast<const ncclCollConfig_t*>(options.data())),
              ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("has no ncclAllReduceConfig"), std::string::npos);
    EXPECT_EQ(by_tutti(), "");
    runs_on_tutti(comm, 1);
  });
}

TEST(NcclEdges, EveryFailureHasACodeOfNccls) {
  using tutti::ErrorKind;
  constexpr std::array<std::pair<ErrorKind, ncclResult_t>, 5> kCodes = {{{ErrorKind::kPeerLost, ncclRemoteError},
                                                                         {ErrorKind::kTimeout, ncclRemoteError},
                                                                         {ErrorKind::kMismatch, ncclInvalidUsage},
                                                                         {ErrorKind::kAborted, ncclSystemError},
                                                                         {ErrorKind::kInternal, ncclInternalError}}};
  for (const auto& [kind, code] : kCodes) {
    run_ranks(2, [kind = kind, code = code](Rank& rank) {
      ::setenv("FAKE_FAILURE", std::to_string(static_cast<int>(kind)).c_str(), 1);
      const ncclComm_t comm = rank.communicator();
      fail_tutti();
      ncclResult_t error = ncclSuccess;
      EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
      EXPECT_EQ(error, code);
      EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 4, ncclFloat32, ncclSum, comm, nullptr), code);
      EXPECT_STREQ(ncclGetLastError(comm), "tutti: rank 1 is gone");
    });
  }
}

TEST(NcclEdges, AnAsynchronousErrorOfNcclsHasItsText) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 4, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(state(comm), ncclSuccess);
    EXPECT_EQ(std::string(ncclGetLastError(comm)).rfind("tutti: ", 0), 0U);
    fail_nccl(ncclRemoteError);
    EXPECT_EQ(state(comm), ncclRemoteError);
    EXPECT_STREQ(ncclGetLastError(comm), "a stand-in's last error");
  });
}

TEST(NcclEdges, AnEndWithoutAStartIsNccls) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);  // the stand-in minds nothing
    EXPECT_EQ(by_nccl(), "GroupEnd");
    runs_on_tutti(comm, 1);  // at once: no group is open
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    by_nccl();
    runs_on_tutti(comm, 2);
  });
}

}  // namespace
}  // namespace nccl_test
