// What the library under NCCL's name runs on Tutti, in what order, and how that ends. A fake plug-in records it.
#include <thread>

#include "nccl_ranks.h"

namespace nccl_test {
namespace {

constexpr size_t kLarge = size_t{1} << 30;
std::array<float, 64> buffer;

ncclResult_t all_reduce(ncclComm_t comm, size_t count, ncclDataType_t type = ncclFloat32, ncclRedOp_t op = ncclSum) {
  return ncclAllReduce(buffer.data(), buffer.data(), count, type, op, comm, nullptr);
}

TEST(NcclServed, EachCallByWhatAllRanksKnow) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    float* const data = buffer.data();
    float* const apart = data + buffer.size() / 2;
    EXPECT_EQ(all_reduce(comm, 4), ncclSuccess);
    EXPECT_EQ(ncclAllGather(data, apart, 5, ncclInt8, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclReduceScatter(data, apart, 6, ncclBfloat16, ncclMax, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclReduce(data, rank.rank() == 1 ? data : nullptr, 7, ncclFloat64, ncclMin, 1, comm, nullptr),
              ncclSuccess);
    // Options that are none are no reason.
    EXPECT_EQ(ncclAllReduceConfig(data, data, 8, ncclFloat32, ncclAvg, comm, nullptr, nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "");
    EXPECT_EQ(by_tutti(), "all_reduce:4 all_gather:5 reduce_scatter:6 reduce:7 all_reduce:8");

    EXPECT_EQ(all_reduce(comm, kLarge), ncclSuccess);                                           // too large
    EXPECT_EQ(all_reduce(comm, 0), ncclSuccess);                                                // nothing to do
    EXPECT_EQ(all_reduce(comm, 2, ncclInt32, ncclAvg), ncclSuccess);                            // NCCL's rounding
    EXPECT_EQ(all_reduce(comm, 3, ncclFloat8e4m3), ncclSuccess);                                // likewise
    EXPECT_EQ(all_reduce(comm, 4, ncclFloat32, static_cast<ncclRedOp_t>(5)), ncclSuccess);      // of the program's own
    EXPECT_EQ(all_reduce(comm, 5, static_cast<ncclDataType_t>(100)), ncclSuccess);              // for NCCL to refuse
    EXPECT_EQ(ncclReduce(data, data, 1, ncclFloat32, ncclSum, 7, comm, nullptr), ncclSuccess);  // likewise
    EXPECT_EQ(by_nccl(), "AllReduce:" + std::to_string(kLarge) + " AllReduce:0 AllReduce:2 AllReduce:3 AllReduce:4 " +
                             "AllReduce:5 Reduce");
    EXPECT_EQ(by_tutti(), "");
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

// One call and no copy beside it: the root's buffers are in it, of the others the one that they have.
TEST(NcclServed, ABroadcastHasTheRootsTwoBuffers) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    float* const data = buffer.data();
    float* const apart = data + buffer.size() / 2;
    for (int root = 0; root < 2; ++root) {
      const bool here = rank.rank() == root;
      EXPECT_EQ(ncclBroadcast(here ? data : nullptr, apart, 4, ncclFloat32, root, comm, nullptr), ncclSuccess);
      EXPECT_EQ(by_tutti(), here ? "broadcast:4 elsewhere" : "broadcast:4");
      EXPECT_EQ(ncclBroadcast(data, data, 5, ncclFloat32, root, comm, nullptr), ncclSuccess);
      EXPECT_EQ(ncclBroadcast(data, data + 1, 6, ncclFloat32, root, comm, nullptr), ncclSuccess);  // NCCL does not look
      EXPECT_EQ(ncclBcast(data, 7, ncclFloat32, root, comm, nullptr), ncclSuccess);
      EXPECT_EQ(by_tutti(),
                here ? "broadcast:5 broadcast:6 elsewhere broadcast:7" : "broadcast:5 broadcast:6 broadcast:7");
    }
    EXPECT_EQ(by_nccl(), "");
  });
}

// What decide() takes, Tutti's own rules take: else a call would be refused that NCCL runs.
TEST(NcclServed, EveryTypeAndOperationThatIsTakenRuns) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    for (int type = 0; type < 12; ++type) {
      for (int op = 0; op < 5; ++op) {
        EXPECT_EQ(all_reduce(comm, 4, static_cast<ncclDataType_t>(type), static_cast<ncclRedOp_t>(op)), ncclSuccess)
            << type << " " << op << ": " << ncclGetLastError(comm);
      }
      EXPECT_EQ(ncclAllGather(buffer.data(), buffer.data() + buffer.size() / 2, 4, static_cast<ncclDataType_t>(type),
                              comm, nullptr),
                ncclSuccess);
    }
  });
}

// Each rank's scalar is its own, on the host or on the device; where the call runs does not depend on it.
TEST(NcclServed, SumsOfScaledInputs) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator(), other = rank.communicator();
    const auto scale = [&](ncclDataType_t type, const void* scalar, ncclScalarResidence_t where) {
      ncclRedOp_t op = ncclSum;
      EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, const_cast<void*>(scalar), type, where, comm), ncclSuccess);
      return op;
    };
    float single = rank.rank() == 0 ? 0.25F : -3.0F;
    const double twice = 1.5;
    const std::uint16_t half = 0x3800, tiny = 0x8001, brain = 0x4040;  // 0.5, -2^-24, 3
    const std::int32_t whole = 7;
    const ncclRedOp_t singly = scale(ncclFloat32, &single, ncclScalarHostImmediate);
    const ncclRedOp_t doubly = scale(ncclFloat64, &twice, ncclScalarHostImmediate);
    const ncclRedOp_t halved = scale(ncclFloat16, &half, ncclScalarHostImmediate);
    const ncclRedOp_t little = scale(ncclFloat16, &tiny, ncclScalarHostImmediate);
    const ncclRedOp_t thrice = scale(ncclBfloat16, &brain, ncclScalarHostImmediate);
    const ncclRedOp_t wholly = scale(ncclInt32, &whole, ncclScalarHostImmediate);
    // One rank's on the device.
    const ncclRedOp_t there =
        scale(ncclFloat32, &single, rank.rank() == 0 ? ncclScalarDevice : ncclScalarHostImmediate);
    single = 99;  // read when the operation was made, but for that one

    float* const data = buffer.data();
    float* const apart = data + buffer.size() / 2;
    EXPECT_EQ(all_reduce(comm, 1, ncclFloat32, singly), ncclSuccess);
    EXPECT_EQ(by_tutti(), rank.rank() == 0 ? "all_reduce:1*0.25" : "all_reduce:1*-3");
    EXPECT_EQ(all_reduce(comm, 2, ncclFloat64, doubly), ncclSuccess);
    EXPECT_EQ(ncclReduceScatter(data, apart, 3, ncclFloat16, halved, comm, nullptr), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 4, ncclFloat16, little), ncclSuccess);
    EXPECT_EQ(ncclReduce(data, data, 5, ncclBfloat16, thrice, 0, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:2*1.5 reduce_scatter:3*0.5 all_reduce:4*-5.96046e-08 reduce:5*3");
    char at[64];
    std::snprintf(at, sizeof(at), "all_reduce:6*at %p", static_cast<void*>(&single));
    EXPECT_EQ(all_reduce(comm, 6, ncclFloat32, there), ncclSuccess);
    EXPECT_EQ(by_tutti(), rank.rank() == 0 ? at : "all_reduce:6*-3");
    EXPECT_EQ(by_nccl(), "");

    // Integers, another type than the operation's, and another communicator's operation are NCCL's.
    EXPECT_EQ(all_reduce(comm, 7, ncclInt32, wholly), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 8, ncclFloat64, singly), ncclSuccess);
    EXPECT_EQ(all_reduce(other, 9, ncclFloat32, singly), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllReduce:7 AllReduce:8 AllReduce:9");

    // A queued call keeps its scalar; the number stands for nothing then, until it comes again.
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 1, ncclFloat32, singly), ncclSuccess);
    EXPECT_EQ(ncclRedOpDestroy(singly, comm), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 2, ncclFloat32, singly), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), rank.rank() == 0 ? "all_reduce:1*0.25" : "all_reduce:1*-3");
    EXPECT_EQ(by_nccl(), "GroupStart AllReduce:2 GroupEnd");
    EXPECT_EQ(scale(ncclFloat64, &twice, ncclScalarHostImmediate), singly);
    EXPECT_EQ(all_reduce(comm, 3, ncclFloat64, singly), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:3*1.5");
    // What NCCL refuses to make or destroy changes nothing.
    EXPECT_EQ(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(comm, 4), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:4");
  });
}

TEST(NcclServed, GroupsOfCallsKeepTheirOrder) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat32, 1 - rank.rank(), comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 2), ncclSuccess);
    EXPECT_EQ(ncclRecv(buffer.data(), 4, ncclFloat32, 1 - rank.rank(), comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, kLarge), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 3), ncclSuccess);
    EXPECT_EQ(by_tutti(), "");  // nothing before the outermost end
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1 all_reduce:2 all_reduce:3");
    EXPECT_EQ(by_nccl(), "GroupStart Send GroupStart Recv GroupEnd AllReduce:" + std::to_string(kLarge) + " GroupEnd");
    // A group that is wrong in itself is refused at once, and the rest of it runs.
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 4, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd");
  });
}

TEST(NcclServed, AFailureIsAnAsynchronousErrorWithItsText) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    ncclResult_t error = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    EXPECT_EQ(error, ncclSuccess);
    fail_tutti();
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    EXPECT_EQ(error, ncclRemoteError);
    EXPECT_STREQ(ncclGetLastError(comm), "tutti: rank 1 is gone");
    EXPECT_EQ(all_reduce(comm, 1), ncclRemoteError);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclRemoteError);  // and the real group has ended, too
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd");
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_EQ(by_nccl(), "CommAbort");
  });
}

// As a program's watchdog does it: from another thread than the one that waits.
TEST(NcclServed, AbortEndsWhatFinalizeWaitsFor) {
  run_ranks(2, [](Rank& rank) {
    std::array<int, 2> hangs{};
    ASSERT_EQ(::pipe(hangs.data()), 0);
    ::setenv("FAKE_HANGS", std::to_string(hangs[1]).c_str(), 1);
    const ncclComm_t comm = rank.communicator();
    by_nccl();
    std::thread ending([&] { EXPECT_EQ(ncclCommFinalize(comm), ncclSystemError); });
    char byte = 0;
    ASSERT_EQ(::read(hangs[0], &byte, 1), 1);  // its kernels are waited for
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    ending.join();
    ASSERT_EQ(::read(hangs[0], &byte, 1), 1);  // it has ended
    EXPECT_EQ(by_nccl(), "CommAbort");         // which has freed it: nothing else may touch it
  });
}

// A kernel of NCCL's whose peer never comes, and one of Tutti's behind it on the same stream: NCCL ends the first, so
// nothing may be waited for before it is asked to, nor by the caller behind that.
TEST(NcclServed, AbortDoesNotWaitForWhatIsBehindNccl) {
  for (const std::string how : {"CommAbort", "CommRevoke", "CommShrink"}) {
    run_ranks(2, [&](Rank& rank) {
      std::array<int, 2> behind{}, ended{};
      ASSERT_EQ(::pipe(behind.data()), 0);
      ASSERT_EQ(::pipe(ended.data()), 0);
      ::setenv("FAKE_BEHIND_NCCL", std::to_string(behind[0]).c_str(), 1);
      ::setenv("FAKE_HANGS", std::to_string(ended[1]).c_str(), 1);
      const ncclComm_t comm = rank.communicator();
      ncclComm_t shrunk = nullptr;
      int excluded = 1;
      EXPECT_EQ(how == "CommAbort"    ? ncclCommAbort(comm)
                : how == "CommRevoke" ? ncclCommRevoke(comm, 0)
                                      : ncclCommShrink(comm, &excluded, 1, &shrunk, nullptr, 1),
                ncclSuccess);
      ASSERT_EQ(::write(behind[1], "!", 1), 1);
      char byte = 0;
      ASSERT_EQ(::read(ended[0], &byte, 1), 1);  // it has ended
      EXPECT_EQ(by_nccl(), how);
    });
  }
}

// Made before the library has anything of a thread's own, and so destroyed behind it.
struct EndsLate {
  ncclComm_t comm = nullptr;
  void use() const {
    EXPECT_EQ(ncclCommSuspend(comm, 0), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("has no ncclCommSuspend"), std::string::npos);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1");
  }
  ~EndsLate() { use(); }
};

TEST(NcclServed, DestructorsOfThreadsMayCall) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    std::thread([&] {
      static thread_local EndsLate late;
      late.comm = comm;
      late.use();
    }).join();
  });
}

TEST(NcclServed, AFailureIsSaidByFinalizeAndBehindIt) {
  run_ranks(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    fail_tutti();
    EXPECT_EQ(ncclCommFinalize(comm), ncclRemoteError);
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    EXPECT_EQ(error, ncclRemoteError);
    EXPECT_STREQ(ncclGetLastError(comm), "tutti: rank 1 is gone");
    EXPECT_EQ(by_nccl(), "CommFinalize");
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

TEST(NcclServed, SplitsAreServedShrunkAndGrownOnesAreNot) {
  run_ranks(3, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    // The same ranks anew: of as many as the parent, which is what the stand-in makes of a split.
    ncclComm_t again = nullptr, none = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, 5, rank.rank(), &again, nullptr), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(again, 9), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:9");
    // Without a colour there is no communicator, and nobody waits for that rank.
    EXPECT_EQ(ncclCommSplit(comm, -1, 0, &none, nullptr), ncclSuccess);
    EXPECT_EQ(none, nullptr);
    ncclComm_t shrunk = nullptr;
    EXPECT_EQ(ncclCommShrink(comm, nullptr, 1, &shrunk, nullptr, 0), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(shrunk, 9), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllReduce:9");
    ncclComm_t grown = nullptr;
    EXPECT_EQ(ncclCommGrow(comm, 4, nullptr, -1, &grown, nullptr), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(grown, 9), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllReduce:9");
    // The parent goes on, unless the shrinking aborts it.
    EXPECT_EQ(all_reduce(comm, 7), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:7");
    EXPECT_EQ(ncclCommShrink(comm, nullptr, 1, &shrunk, nullptr, 1), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(comm, 7), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllReduce:7");
  });
}

// Halves in an order of their own, and what is split from one of them when the rank that made the id has left both.
TEST(NcclServed, PartsOfACommunicatorAndTheirParts) {
  run_ranks(4, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    // Ranks 1 and 3, ranks 2 and 0: by descending keys.
    const int half = rank.rank() % 2, place = rank.rank() < 2 ? 1 : 0;
    ::setenv("STAND_IN_SPLIT", (std::to_string(place) + ",2").c_str(), 1);
    ncclComm_t part = nullptr, again = nullptr;
    EXPECT_EQ(ncclCommSplit(comm, half, 10 - rank.rank(), &part, nullptr), ncclSuccess);
    by_nccl();
    EXPECT_EQ(all_reduce(part, 5), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:5");
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    if (half == 0) {
      EXPECT_EQ(ncclCommDestroy(part), ncclSuccess);
      return;
    }
    EXPECT_EQ(ncclCommSplit(part, 7, place, &again, nullptr), ncclSuccess);
    by_nccl();
    // By NCCL, where rank 0 has ended with the store: by both ranks then.
    EXPECT_EQ(all_reduce(again, 6), ncclSuccess);
    EXPECT_NE(by_tutti().empty(), by_nccl().empty());
  });
}

TEST(NcclServed, TwoCommunicatorsInTwoThreads) {
  run_ranks(2, [](Rank& rank) {
    const std::array<ncclComm_t, 2> comms = {rank.communicator(), rank.communicator()};
    std::array<std::thread, 2> threads;
    for (std::size_t t = 0; t < 2; ++t) {
      threads[t] = std::thread([&, t] {
        for (int i = 0; i < 200; ++i) {
          EXPECT_EQ(ncclGroupStart(), ncclSuccess);
          EXPECT_EQ(all_reduce(comms[t], 1), ncclSuccess);
          EXPECT_EQ(all_reduce(comms[t], kLarge), ncclSuccess);
          EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
        }
        EXPECT_EQ(ncclCommDestroy(comms[t]), ncclSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(NcclServed, LimitsAsTheyAreSet) {
  struct Case {
    const char *name, *value;
    bool small, large, reduce;  // what runs on Tutti: sums of 1 KB and 1 byte more, and a reduction of 1 KB
  };
  for (const Case& c :
       {Case{"TUTTI_NCCL_MAX_BYTES", "1KB", true, false, true}, Case{"TUTTI_NCCL_MAX_BYTES", "1024", true, false, true},
        Case{"TUTTI_NCCL_MAX_BYTES", "AllReduce=1k,broadcast=2GB", true, false, true},
        Case{"TUTTI_NCCL_MAX_BYTES", "allreduce=1023", false, false, true},
        Case{"TUTTI_NCCL_MAX_BYTES", "0", false, false, false}, Case{"TUTTI_NCCL_LEAVE", "all", false, false, false},
        Case{"TUTTI_NCCL_LEAVE", "all_reduce,broadcast", false, false, true},
        Case{"TUTTI_NCCL_LEAVE", "reduce", true, true, false}}) {
    run_ranks(2, [&c](Rank& rank) {
      ::setenv(c.name, c.value, 1);
      const ncclComm_t comm = rank.communicator();
      std::array<char, 2048> bytes{};
      const auto runs = [&](ncclResult_t result) {
        EXPECT_EQ(result, ncclSuccess);
        by_nccl();
        return !by_tutti().empty();
      };
      char* const data = bytes.data();
      EXPECT_EQ(runs(ncclAllReduce(data, data, 1024, ncclUint8, ncclSum, comm, nullptr)), c.small) << c.value;
      EXPECT_EQ(runs(ncclAllReduce(data, data, 1025, ncclUint8, ncclSum, comm, nullptr)), c.large) << c.value;
      EXPECT_EQ(runs(ncclReduce(data, data, 1024, ncclUint8, ncclSum, 0, comm, nullptr)), c.reduce) << c.value;
    });
  }
}

TEST(NcclServed, AliasesOfMscclppCount) {
  run_ranks(2, [](Rank& rank) {
    ::unsetenv("TUTTI_NCCL_LIB_PATH");
    ::setenv("MSCCLPP_NCCL_LIB_PATH", stand_in(), 1);
    ::setenv("MSCCLPP_FORCE_NCCL_FALLBACK_OPERATION", "allgather,broadcast", 1);
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(ncclAllGather(buffer.data(), buffer.data(), 5, ncclInt8, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllGather");
    EXPECT_EQ(by_tutti(), "all_reduce:1");
  });
}

TEST(NcclServed, TheReportSaysWhichSettingCannotBeRead) {
  for (const std::string setting : {"TUTTI_NCCL=perhaps", "TUTTI_NCCL_MAX_BYTES=much"}) {
    const std::string text = report_of(2, [&](Rank& rank) {
      const size_t equal = setting.find('=');
      ::setenv(setting.substr(0, equal).c_str(), setting.substr(equal + 1).c_str(), 1);
      EXPECT_EQ(ncclCommDestroy(rank.communicator()), ncclSuccess);
    });
    EXPECT_NE(text.find(", all left to it: " + setting + ": must be"), std::string::npos) << text;
  }
}

TEST(NcclServed, TheReportSaysWhatRanWhereAndWhy) {
  const std::string text = report_of(2, [](Rank& rank) {
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(all_reduce(comm, 256), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, kLarge), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 4, ncclFloat32, static_cast<ncclRedOp_t>(6)), ncclSuccess);
    EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat32, 1, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
  for (const char* const line :
       {"above NCCL 2.27.3", "communicators on Tutti, peer memory of nothing: 1\n",
        "all_reduce: 1 by Tutti (1.0 KB), 2 by NCCL: larger than the limit 1, an operation that is not known 1\n",
        "send: 0 by Tutti (0 B), 1 by NCCL: a message between two ranks 1\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
  }
}

}  // namespace
}  // namespace nccl_test
