// What the library under NCCL's name passes on: everything, where there is no group of Tutti's.
#include <cstring>

#include "nccl_ranks.h"

namespace nccl_test {
namespace {

std::array<float, 64> buffer;

// One of each, in groups and out of them.
void everything(ncclComm_t comm) {
  float* const data = buffer.data();
  EXPECT_EQ(ncclAllReduce(data, data, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclBroadcast(data, data, 4, ncclFloat32, 0, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclSend(data, 4, ncclFloat32, 1, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclRecv(data, 4, ncclFloat32, 1, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(ncclReduce(data, data, 4, ncclFloat32, ncclMax, 0, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(ncclAllGather(data, data, 4, ncclFloat32, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclReduceScatter(data, data, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclBcast(data, 4, ncclFloat32, 0, comm, nullptr), ncclSuccess);
}
constexpr const char* kEverything =
    "AllReduce:4 GroupStart Broadcast GroupStart Send Recv GroupEnd Reduce GroupEnd AllGather ReduceScatter Bcast";

TEST(NcclFallsThrough, WhereOneRankCannotMakeItsPart) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("FAKE_REFUSES", "1", 1);
    const ncclComm_t comm = rank.communicator();
    everything(comm);
    EXPECT_EQ(by_nccl(), kEverything);
    EXPECT_EQ(by_tutti(), "");
    EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    EXPECT_EQ(by_nccl(), "CommFinalize CommDestroy");
  });
}

TEST(NcclFallsThrough, WhereSettingsDiffer) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_MAX_BYTES", rank.rank() == 0 ? "1MB" : "all_reduce=2MB", 1);
    const ncclComm_t comm = rank.communicator();
    everything(comm);
    EXPECT_EQ(by_nccl(), kEverything);
  });
}

TEST(NcclFallsThrough, WhereItIsNotTurnedOn) {
  run_ranks(2, [](Rank& rank) {
    ::unsetenv("TUTTI_NCCL");
    const ncclComm_t comm = rank.communicator();
    everything(comm);
    EXPECT_EQ(by_nccl(), kEverything);
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    EXPECT_EQ(by_nccl(), "CommAbort");
  });
}

TEST(NcclFallsThrough, WhereASettingCannotBeRead) {
  const std::array<std::array<const char*, 2>, 10> settings = {{{"TUTTI_NCCL", "perhaps"},
                                                                {"TUTTI_NCCL_REPORT", "perhaps"},
                                                                {"TUTTI_NCCL_MAX_BYTES", "much"},
                                                                {"TUTTI_NCCL_MAX_BYTES", "4XB"},
                                                                {"TUTTI_NCCL_MAX_BYTES", "16777216TB"},
                                                                {"TUTTI_NCCL_MAX_BYTES", "all_reduce="},
                                                                {"TUTTI_NCCL_MAX_BYTES", "all_reduced=4MB"},
                                                                {"TUTTI_NCCL_LEAVE", "everything"},
                                                                {"TUTTI_NCCL_PATIENCE_MS", "9"},
                                                                {"TUTTI_NCCL_PATIENCE_MS", "600001"}}};
  for (const auto& [name, value] : settings) {
    run_ranks(2, [name = name, value = value](Rank& rank) {
      ::setenv(name, value, 1);
      everything(rank.communicator());
      EXPECT_EQ(by_nccl(), kEverything) << name << "=" << value;
      EXPECT_EQ(by_tutti(), "");
    });
  }
}

TEST(NcclFallsThrough, UnderTheProfilersNames) {
  run_ranks(1, [](Rank&) {
    const auto version = reinterpret_cast<ncclResult_t (*)(int*)>(::dlsym(RTLD_DEFAULT, "pncclGetVersion"));
    const auto start = reinterpret_cast<ncclResult_t (*)()>(::dlsym(RTLD_DEFAULT, "pncclGroupStart"));
    ASSERT_NE(version, nullptr);
    ASSERT_NE(start, nullptr);
    int code = 0;
    EXPECT_EQ(version(&code), ncclSuccess);
    EXPECT_EQ(code, 22703);
    EXPECT_EQ(start(), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd");
  });
}

TEST(NcclFallsThrough, WhatAnOlderLibraryLacksIsAnErrorThatSaysSo) {
  run_ranks(1, [](Rank&) {
    EXPECT_STREQ(ncclGetLastError(nullptr), "a stand-in's last error");
    EXPECT_EQ(ncclCommSuspend(nullptr, 0), ncclInvalidUsage);
    const std::string text = ncclGetLastError(nullptr);
    EXPECT_NE(text.find("NCCL 2.27.3"), std::string::npos) << text;
    EXPECT_NE(text.find("has no ncclCommSuspend"), std::string::npos) << text;
    EXPECT_EQ(ncclTeamWorld(nullptr).nRanks, 0);
    ncclParamDumpAll();
    // An error of the library itself comes after it.
    void* memory = nullptr;
    EXPECT_EQ(ncclMemAlloc(&memory, 1), ncclUnhandledCudaError);
    EXPECT_STREQ(ncclGetLastError(nullptr), "a stand-in's last error");
    EXPECT_STREQ(ncclGetErrorString(ncclInternalError), "a stand-in's error");
  });
}

TEST(NcclFallsThrough, WithoutALibraryEveryCallSaysSo) {
  run_ranks(1, [](Rank&) {
    ::setenv("TUTTI_NCCL_LIB_PATH", "/nowhere/libnccl.so.2", 1);
    int version = 0;
    EXPECT_EQ(ncclGetVersion(&version), ncclSystemError);
    const std::string text = ncclGetLastError(nullptr);
    EXPECT_NE(text.find("TUTTI_NCCL_LIB_PATH=/nowhere/libnccl.so.2"), std::string::npos) << text;
    EXPECT_NE(std::string(ncclGetErrorString(ncclSystemError)), "");
  });
}

TEST(NcclFallsThrough, ItselfIsNoLibraryToPassCallsOnTo) {
  run_ranks(1, [](Rank&) {
    Dl_info info{};
    ASSERT_NE(::dladdr(reinterpret_cast<void*>(&ncclGetVersion), &info), 0);
    ::setenv("TUTTI_NCCL_LIB_PATH", info.dli_fname, 1);
    int version = 0;
    EXPECT_EQ(ncclGetVersion(&version), ncclSystemError);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("it is Tutti's own"), std::string::npos);
  });
}

// As PyTorch loads its own: with symbols that nobody else sees.
TEST(NcclFallsThrough, ToTheLibraryThatTheProgramHasLoaded) {
  run_ranks(1, [](Rank&) {
    ::unsetenv("TUTTI_NCCL_LIB_PATH");
    ASSERT_NE(::dlopen(stand_in(), RTLD_NOW | RTLD_LOCAL), nullptr);
    int version = 0;
    EXPECT_EQ(ncclGetVersion(&version), ncclSuccess) << ncclGetLastError(nullptr);
    EXPECT_EQ(version, 22703);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(by_nccl(), "GroupStart");
  });
}

TEST(NcclFallsThrough, UniqueIdsAreNcclsWithAPlaceInTheFreePart) {
  run_ranks(1, [](Rank&) {
    ncclUniqueId one{}, two{};
    ASSERT_EQ(ncclGetUniqueId(&one), ncclSuccess);
    ASSERT_EQ(ncclGetUniqueId(&two), ncclSuccess);
    EXPECT_EQ(one.internal[0], 1);
    EXPECT_EQ(two.internal[0], 2);
    EXPECT_EQ(std::memcmp(one.internal + 8, two.internal + 8, 56), 0);
    EXPECT_NE(std::memcmp(one.internal + 64, two.internal + 64, 64), 0);
    // Where every rank may make the same id for itself, nothing is added.
    ::setenv("NCCL_COMM_ID", "127.0.0.1:9", 1);
    ASSERT_EQ(ncclGetUniqueId(&one), ncclSuccess);
    const std::array<char, 64> zero{};
    EXPECT_EQ(std::memcmp(one.internal + 64, zero.data(), zero.size()), 0);
  });
}

}  // namespace
}  // namespace nccl_test
