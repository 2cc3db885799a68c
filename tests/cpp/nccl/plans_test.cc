// Plans that a program gives, or files name, come before Tutti's own kernels and the limits of those: on all ranks, or
// on none.
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "algorithm/user/given_algorithms.h"
#include "executor/executor_plans.h"
#include "nccl_ranks.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"
#include "tutti/error.h"

namespace nccl_test {
namespace {

constexpr size_t kLarge = size_t{16} << 20;  // one element is beyond what was measured, another plan's range begins
std::array<float, 64> buffer;
std::vector<float> large(kLarge / sizeof(float) + 1);

ncclResult_t all_reduce(ncclComm_t comm, size_t count) {
  float* const data = count <= buffer.size() ? buffer.data() : large.data();
  return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, comm, nullptr);
}

std::string text_of(int ranks, const char* name) {
  tutti::plan::Plan plan = tutti::plan::packet_two_step_all_reduce(ranks);
  plan.name = name;
  return tutti::plan::write_plan(plan, -1);
}

tutti::UserAlgorithmPtr plan_of(int ranks, const char* name, size_t least = 0, size_t most = size_t{1} << 40) {
  tutti::AlgorithmLimits limits;
  limits.min_bytes = least;
  limits.max_bytes = most;
  return tutti::plan_algorithm(text_of(ranks, name), "a test", limits);
}

void give(std::vector<tutti::UserAlgorithmPtr> algorithms,
          std::function<tutti::UserAlgorithmPtr(const tutti::AlgorithmRequest&)> choose = {}) {
  tutti::give_algorithms([=](int) { return tutti::AlgorithmSet{algorithms, choose}; });
}

void runs(ncclComm_t comm, size_t count, const std::string& ours, const std::string& theirs = "") {
  EXPECT_EQ(all_reduce(comm, count), ncclSuccess) << ncclGetLastError(comm);
  EXPECT_EQ(by_tutti(), ours);
  EXPECT_EQ(by_nccl(), theirs);
}

TEST(NcclPlans, ComeBeforeKernelsAndTheirLimits) {
  run_ranks(2, [](Rank& rank) {
    give({plan_of(2, "small", 16, 64), plan_of(2, "large", kLarge + 1)});
    const ncclComm_t comm = rank.communicator();
    const size_t more = kLarge / sizeof(float) + 1;
    runs(comm, 4, "all_reduce:4 by small");
    runs(comm, 32, "all_reduce:32");  // no plan fits
    runs(comm, more, "all_reduce:" + std::to_string(more) + " by large");
    // In a group of calls each keeps what was said of it.
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 5), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 32), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:5 by small all_reduce:32");
    EXPECT_EQ(by_nccl(), "GroupStart GroupEnd");
    // What is NCCL's in any case stays so, and messages are not asked about.
    EXPECT_EQ(ncclAllReduce(buffer.data(), buffer.data(), 4, ncclInt32, ncclAvg, comm, nullptr), ncclSuccess);
    EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat32, 1, comm, nullptr), ncclSuccess);
    EXPECT_EQ(by_nccl(), "AllReduce:4 Send");
    EXPECT_EQ(by_tutti(), "");
  });
}

// The root alone has two buffers in the call, and a function must not choose by what ranks differ in.
TEST(NcclPlans, AFunctionSeesABroadcastAlikeOnAllRanks) {
  run_ranks(2, [](Rank& rank) {
    const auto told = std::make_shared<std::vector<bool>>();
    give({plan_of(2, "any")}, [told](const tutti::AlgorithmRequest& request) -> tutti::UserAlgorithmPtr {
      told->push_back(request.input == request.output && request.output == buffer.data() + 8);
      return nullptr;
    });
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(ncclBroadcast(buffer.data(), buffer.data() + 8, 4, ncclFloat32, 0, comm, nullptr), ncclSuccess);
    EXPECT_EQ(*told, std::vector<bool>{true});
  });
}

TEST(NcclPlans, SettingsBoundThemToo) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_MAX_BYTES", "32", 1);
    give({plan_of(2, "any")});
    const ncclComm_t comm = rank.communicator();
    runs(comm, 8, "all_reduce:8 by any");
    runs(comm, 9, "", "AllReduce:9");
  });
  run_ranks(2, [](Rank& rank) {
    ::setenv("TUTTI_NCCL_LEAVE", "all_reduce", 1);
    give({plan_of(2, "any")});
    runs(rank.communicator(), 8, "", "AllReduce:8");
  });
}

TEST(NcclPlans, ASelectorFunctionIsAskedOnceACall) {
  run_ranks(2, [](Rank& rank) {
    static int asked = 0;
    static tutti::UserAlgorithmPtr first, second;
    first = plan_of(2, "first");
    second = plan_of(2, "second");
    give({first, second}, [](const tutti::AlgorithmRequest& request) -> tutti::UserAlgorithmPtr {
      ++asked;
      if (request.bytes == 400) tutti::throw_error(tutti::ErrorKind::kInvalidArgument, "the selector raised");
      return request.bytes == 4 ? first : request.bytes < 32 ? second : nullptr;
    });
    const ncclComm_t comm = rank.communicator();
    EXPECT_EQ(asked, 0);
    runs(comm, 1, "all_reduce:1 by first");
    runs(comm, 2, "all_reduce:2 by second");
    runs(comm, 8, "all_reduce:8");  // none of them
    const size_t more = kLarge / sizeof(float) + 1;
    runs(comm, more, "", "AllReduce:" + std::to_string(more));
    EXPECT_EQ(asked, 4);
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 1), ncclSuccess);
    EXPECT_EQ(asked, 5);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(by_tutti(), "all_reduce:1 by first");
    EXPECT_EQ(asked, 5);
    by_nccl();
    // What it raises is the call's, before anything is sent.
    EXPECT_EQ(all_reduce(comm, 100), ncclInvalidArgument);
    EXPECT_STREQ(ncclGetLastError(comm), "tutti: the selector raised");
    EXPECT_EQ(by_tutti() + by_nccl(), "");
    // A message and what NCCL runs in any case ask nobody.
    EXPECT_EQ(ncclSend(buffer.data(), 4, ncclFloat32, 1, comm, nullptr), ncclSuccess);
    EXPECT_EQ(all_reduce(comm, 0), ncclSuccess);
    EXPECT_EQ(asked, 6);
  });
}

TEST(NcclPlans, RanksThatDifferLeaveTheCommunicatorToNccl) {
  const auto choose = [](const tutti::AlgorithmRequest&) { return tutti::UserAlgorithmPtr(); };
  const std::array<std::function<void()>, 5> others = {
      [] { tutti::give_algorithms({}); },
      [] { give({plan_of(2, "another")}); },
      [] {
        give({plan_of(2, "one"), plan_of(2, "another")});
      },
      [&] { give({plan_of(2, "one")}, choose); },
      [] {
        tutti::give_algorithms([](int) -> tutti::AlgorithmSet {
          tutti::throw_error(tutti::ErrorKind::kInvalidArgument, "what is given cannot be made");
        });
      },
  };
  for (std::size_t i = 0; i < others.size(); ++i) {
    run_ranks(2, [&](Rank& rank) {
      ::setenv("TUTTI_NCCL_PATIENCE_MS", "600000", 1);  // nobody is waited for
      give({plan_of(2, "one")});
      if (rank.rank() == 1) others[i]();
      runs(rank.communicator(), 4, "", "AllReduce:4");
    });
  }
}

TEST(NcclPlans, OfFilesUnderBothNames) {
  for (const char* const variable : {"TUTTI_PLAN_PATH", "MSCCLPP_EXECUTION_PLAN_DIR"}) {
    const tutti::test::TemporaryFolder folder, other;
    std::ofstream(folder.path() + "/plan.json") << text_of(2, "of_a_file");
    std::ofstream(other.path() + "/plan.json") << text_of(2, "of_another");
    run_ranks(2, [&](Rank& rank) {
      ::setenv(variable, folder.path().c_str(), 1);
      give({plan_of(2, "given", 0, 16)});
      const ncclComm_t comm = rank.communicator();
      runs(comm, 4, "all_reduce:4 by given");
      runs(comm, 5, "all_reduce:5 by of_a_file");
    });
    for (const std::string& path : {other.path(), std::string(), folder.path() + "/nothing.json"}) {
      run_ranks(2, [&](Rank& rank) {
        ::setenv(variable, (rank.rank() == 0 ? folder.path() : path).c_str(), 1);
        runs(rank.communicator(), 4, "", "AllReduce:4");
      });
    }
  }
}

TEST(NcclPlans, AreInTheReport) {
  const std::string text = report_of(2, [](Rank& rank) {
    give({plan_of(2, "small", 16, 64)});
    const ncclComm_t comm = rank.communicator();
    for (const size_t count : {4, 5, 32}) EXPECT_EQ(all_reduce(comm, count), ncclSuccess);
  });
  EXPECT_NE(text.find("all_reduce: 3 by Tutti (164 B, 2 by plans), 0 by NCCL\n"), std::string::npos) << text;
  // Ranks that differ are told in what.
  const std::string different = report_of(2, [](Rank& rank) {
    give({plan_of(2, rank.rank() == 0 ? "one" : "another")});
    EXPECT_EQ(all_reduce(rank.communicator(), 4), ncclSuccess);
  });
  EXPECT_NE(different.find("the algorithms given (AlgorithmCollectionBuilder) is one ("), std::string::npos)
      << different;
  EXPECT_NE(different.find(" on rank 0 and another ("), std::string::npos) << different;
}

// The thread that the program's interpreter may be locked by: another one would wait for it for ever.
TEST(NcclPlans, AreAskedForOnTheProgramsThread) {
  run_ranks(1, [](Rank& rank) {
    static std::thread::id asked;
    static int times = 0;
    tutti::give_algorithms([](int ranks) {
      asked = std::this_thread::get_id();
      ++times;
      return tutti::AlgorithmSet{{plan_of(ranks, "given")}, {}};
    });
    std::array<ncclComm_t, 3> comms{};
    const ncclUniqueId id = rank.id();
    EXPECT_EQ(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < 3; ++r) {
      on_device(r);
      EXPECT_EQ(ncclCommInitRank(&comms[static_cast<std::size_t>(r)], 3, id, r), ncclSuccess);
    }
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(asked, std::this_thread::get_id());
    EXPECT_EQ(times, 3);
    by_nccl();
    runs(comms[0], 3, "all_reduce:3 by given");
  });
}

}  // namespace
}  // namespace nccl_test
