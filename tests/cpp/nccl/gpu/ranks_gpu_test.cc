// How the ranks come together under NCCL's name on GPUs: processes, threads, one thread for all, parts, several ids,
// and communicators whose calls plans of the program's run.
#include "algorithm/user/given_algorithms.h"
#include "executor/executor_plans.h"
#include "nccl/gpu/nccl_gpu_ranks.h"
#include "plan/writer.h"

namespace nccl_test {
namespace {

using tutti::Collective;

void a_few_calls(GpuRank& rank) {
  run_and_check(rank, sum_of(1000), 1);
  run_and_check(rank, sum_of(70'000), 2);
  run_and_check(rank, sum_of(300, Collective::kAllGather), 3);
}

// On one GPU they take turns, so few calls.
TEST(NcclRanksOnGpu, Processes) {
  run_gpu_processes(2, [](Rank& process) {
    GpuRank rank(process.rank(), process.size());
    rank.nccl = process.communicator();
    a_few_calls(rank);
    EXPECT_EQ(by_nccl(), "");
    expect_success(ncclCommFinalize(rank.nccl), "its end");
    expect_success(ncclCommDestroy(rank.nccl), "its destruction");
  });
}

TEST(NcclRanksOnGpu, PartsOfACommunicator) {
  run_gpu_processes(4, [](Rank& process) {
    GpuRank whole(process.rank(), process.size());
    whole.nccl = process.communicator();
    run_and_check(whole, sum_of(100), 1);
    // Ranks 0 and 2, 1 and 3.
    GpuRank part(process.rank() / 2, 2);
    ::setenv("STAND_IN_SPLIT", process.rank() / 2 == 0 ? "0,2" : "1,2", 1);
    expect_success(ncclCommSplit(whole.nccl, process.rank() % 2, process.rank(), &part.nccl, nullptr), "a split");
    by_nccl();
    a_few_calls(part);
    EXPECT_EQ(by_nccl(), "");
    run_and_check(whole, sum_of(200), 4);
  });
}

TEST(NcclRanksOnGpu, SeveralIds) {
  const auto make = [](const GpuRank& rank, const ncclUniqueId& id) {
    std::array<ncclUniqueId, 2> ids = {id, id};
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankScalable(&comm, rank.size, rank.rank, 2, ids.data(), nullptr), ncclSuccess);
    return comm;
  };
  run_gpu_threads(3, make, [](GpuRank& rank) {
    a_few_calls(rank);
    EXPECT_EQ(by_nccl(), "");
  });
}

// As single-process programs do: a group of calls has one of each rank.
TEST(NcclRanksOnGpu, OneThreadForAllRanks) {
  run_gpu_processes(1, [](Rank&) {
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::unique_ptr<GpuRank>> ranks;
    for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<GpuRank>(r, 3));
    std::vector<std::thread> threads;  // one GPU's communicators are not formed in one group of calls
    for (auto& rank : ranks) {
      threads.emplace_back([&rank, &id] {
        TUTTI_CUDA_OK(cudaSetDevice(rank->device));
        on_device(rank->device);
        rank->nccl = by_init_rank(*rank, id);
      });
    }
    for (std::thread& thread : threads) thread.join();
    by_nccl();
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      const CollectiveCase sums(sum_of(1000 * seed), 3, seed), gathered(sum_of(200, Collective::kAllGather), 3, seed);
      std::vector<Buffers> first, second;
      for (auto& rank : ranks) {
        TUTTI_CUDA_OK(cudaSetDevice(rank->device));
        rank->used = 0;
        first.push_back(prepare(*rank, sums, rank->stream));
        second.push_back(prepare(*rank, gathered, rank->stream));
        TUTTI_CUDA_OK(cudaStreamSynchronize(rank->stream));
      }
      expect_success(ncclGroupStart(), "a group");
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        expect_success(issue(ranks[r]->nccl, sums.shape(), first[r], ncclSum, ranks[r]->stream), "a sum");
        expect_success(issue(ranks[r]->nccl, gathered.shape(), second[r], ncclSum, ranks[r]->stream), "a gather");
      }
      expect_success(ncclGroupEnd(), "its end");
      for (std::size_t r = 0; r < ranks.size(); ++r) {
        TUTTI_CUDA_OK(cudaStreamSynchronize(ranks[r]->stream));
        verify(*ranks[r], sums, first[r], "by one thread");
        verify(*ranks[r], gathered, second[r], "by one thread");
      }
    }
    EXPECT_EQ(by_nccl(), [] {
      std::string text;
      for (int i = 0; i < 10; ++i) text += std::string(i > 0 ? " " : "") + "GroupStart GroupEnd";
      return text;
    }());
  });
}

TEST(NcclRanksOnGpu, AllAtOnceOnGpusOfTheirOwn) {
  if (gpus_here() < 2) GTEST_SKIP() << "there are no two GPUs";
  const std::string text = report_of(1, [](Rank&) {
    std::array<ncclComm_t, 2> comms{};
    expect_success(ncclCommInitAll(comms.data(), 2, nullptr), "all ranks");
    std::barrier<> barrier(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        GpuRank rank(r, 2);
        rank.nccl = comms[static_cast<std::size_t>(r)];
        for (const std::size_t count : {1000, 70'000}) {
          const CollectiveCase c(sum_of(count), 2, count);
          rank.used = 0;
          const Buffers b = prepare(rank, c, rank.stream);
          EXPECT_EQ(issue(rank.nccl, c.shape(), b, ncclSum, rank.stream), ncclSuccess);
          EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
          if (by_nccl().empty()) verify(rank, c, b, "all at once");
        }
        barrier.arrive_and_wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_NE(text.find("all_reduce: 4 by Tutti ("), std::string::npos) << text;
}

TEST(NcclRanksOnGpu, TwoCommunicatorsInTwoThreads) {
  run_gpu_threads(2, [](GpuRank& rank) {
    // Another communicator of the same ranks, made behind the first.
    static ncclUniqueId id;
    if (rank.rank == 0) expect_success(ncclGetUniqueId(&id), "an id");
    rank.barrier->arrive_and_wait();
    GpuRank other(rank.rank, rank.size);
    other.nccl = by_init_rank(other, id);
    rank.barrier->arrive_and_wait();
    std::thread beside([&other] {
      TUTTI_CUDA_OK(cudaSetDevice(other.device));
      for (std::uint64_t seed = 1; seed <= 30; ++seed) run_and_check(other, sum_of(100 * seed), seed);
    });
    for (std::uint64_t seed = 101; seed <= 130; ++seed) run_and_check(rank, sum_of(seed), seed);
    beside.join();
  });
}

// By the plan, also beyond what the kernels take; the selector function is asked once a call.
TEST(NcclRanksOnGpu, PlansOfTheProgram) {
  const std::string text = report_of(1, [](Rank&) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    ::setenv("TUTTI_CUDA_COMPILE", "off", 1);
    tutti::plan::Plan plan = tutti::plan::packet_two_step_all_reduce(2);
    plan.name = "of_the_program";
    static tutti::UserAlgorithmPtr algorithm;
    static std::atomic<int> asked{0};
    algorithm = tutti::plan_algorithm(tutti::plan::write_plan(plan, -1), "a test");
    tutti::give_algorithms([](int) {
      return tutti::AlgorithmSet{{algorithm}, [](const tutti::AlgorithmRequest& request) {
                                   ++asked;
                                   return request.bytes >= 4096 ? algorithm : nullptr;
                                 }};
    });
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::barrier<> barrier(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        try {
          GpuRank rank(r, 2);
          rank.nccl = by_init_rank(rank, id);
          run_and_check(rank, sum_of(1024), 1);
          run_and_check(rank, sum_of(3 << 20), 2);
          run_and_check(rank, sum_of(100), 3);
          barrier.arrive_and_wait();
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", r, error.what());
          ::_exit(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(asked.load(), 6);
  });
  EXPECT_NE(text.find("all_reduce: 6 by Tutti ("), std::string::npos) << text;
  EXPECT_NE(text.find(", 4 by plans), 0 by NCCL"), std::string::npos) << text;
}

}  // namespace
}  // namespace nccl_test
