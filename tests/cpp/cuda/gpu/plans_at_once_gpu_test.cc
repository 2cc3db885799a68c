// Plans whose thread blocks need the GPU together: several communicators at once, more blocks and more bytes than fit,
// plans that wait when they are ended.
#include <algorithm>

#include "cuda/gpu/plan_ranks.h"
#include "cuda/plan_cases.h"
#include "plan/structure.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

Plan named(Plan plan, const char* name, int threads) {
  plan.name = name;
  plan.threads_per_block = threads;
  plan.reduce = plan::common_reduction(plan);
  return plan;
}

// A communicator beside the rank's own, on a stream of its own.
struct Another {
  std::shared_ptr<CudaCommunicator> comm;
  cudaStream_t stream = nullptr;
  Buffers buffers;
  cudaGraphExec_t graph = nullptr;
};

void check_all(Rank& rank, const std::vector<Another>& all, const CollectiveCase& c) {
  for (const Another& one : all) one.comm->synchronize(one.stream);
  for (const Another& one : all) verify(rank, c, one.buffers, "one of three");
  rank.barrier->arrive_and_wait();
}

// Three communicators of two ranks run the plan at once, eagerly and in graphs; the second rank launches in the other
// order.
void run_three_at_once(const Plan& plan, std::size_t count) {
  const PlanFolder folder(plan);
  const auto store = std::make_shared<MemoryStore>();
  const GpuWorld world = world_of(folder, 2);
  run_gpu_ranks(world, [&](Rank& rank) {
    const CaseShape shape = shape_of(plan, count, false);
    const CollectiveCase c(shape, rank.size, 1);
    std::vector<Another> all(3);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CudaOptions options = world.options;
      options.device = rank.device;
      all[i].comm = CudaCommunicator::create(store, "comm " + std::to_string(i), rank.rank, rank.size, options);
      TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&all[i].stream, cudaStreamNonBlocking));
      all[i].buffers = prepare(rank, c, all[i].stream);
      const std::string taken = all[i].comm->explain(all[i].buffers.call);
      if (taken != "plan:" + plan.name) throw std::runtime_error("it takes " + taken);
      TUTTI_CUDA_OK(cudaStreamSynchronize(all[i].stream));
    }
    if (rank.rank == 1) std::reverse(all.begin(), all.end());
    rank.barrier->arrive_and_wait();
    for (int round = 0; round < 20; ++round) {
      for (Another& one : all) one.comm->run(one.buffers.call, one.stream);
      check_all(rank, all, c);
    }
    for (Another& one : all) {
      one.graph = capture(one.stream, [&] {
        for (int i = 0; i < 3; ++i) one.comm->run(one.buffers.call, one.stream);
      });
      TUTTI_CUDA_OK(cudaGraphUpload(one.graph, one.stream));
      TUTTI_CUDA_OK(cudaStreamSynchronize(one.stream));
    }
    rank.barrier->arrive_and_wait();
    for (int round = 0; round < 10; ++round) {
      for (const Another& one : all) TUTTI_CUDA_OK(cudaGraphLaunch(one.graph, one.stream));
      check_all(rank, all, c);
    }
    for (Another& one : all) {
      TUTTI_CUDA_OK(cudaGraphExecDestroy(one.graph));
      one.comm.reset();
      TUTTI_CUDA_OK(cudaStreamDestroy(one.stream));
    }
  });
}

// Two ranks on one GPU: 384 thread blocks that wait for others, all of which must be there before any goes on.
TEST(PlansAtOnce, ThreeCommunicatorsOfSixtyFourBlocks) {
  run_three_at_once(named(plan::wide_all_gather(2, 64), "wide", 64), 20'000);
}

// With a GPU a rank each plan takes a quarter of it, in clusters.
TEST(PlansAtOnce, ThreeCommunicatorsOfClusters) {
  run_three_at_once(named(plan::wide_all_gather(2, 8), "clusters", 512), kClustered);
}

// More blocks than the GPU holds with those of the other ranks on it: refused when the plan is given, by all ranks.
TEST(PlansAtOnce, WhatDoesNotFitTogetherIsRefusedWithTheNumber) {
  Plan plan = named(plan::wide_all_gather(2, 300), "too wide", 1024);
  const UserAlgorithmPtr algorithm = plan_algorithm(plan::write_plan(plan), "a test");
  run_gpu_ranks({}, [&](Rank& rank) {
    rank.comm->prepare(algorithm);
    CaseShape shape = shape_of(plan, 1000, false);
    Buffers b = prepare(rank, CollectiveCase(shape, rank.size, 1), rank.stream);
    const AlgorithmChoice choice{algorithm, {}};
    b.call.choice = &choice;
    std::string text = "nothing was thrown";
    try {
      rank.comm->run(b.call, rank.stream);
    } catch (const Error& error) {
      text = error.what();
    }
    for (const char* const said : {"its 300 thread blocks wait for each other, and ", " of them: ", " threads each"}) {
      if (text.find(said) == std::string::npos) throw std::runtime_error(text);
    }
    run_and_verify(rank, shape, 2);
  });
}

// Past 64 operations and 16 channels of a block; programs in several instances.
TEST(PlansAtOnce, LongBlocksAndInstances) {
  auto plans = replicated_programs();
  plans.push_back({"long", std::make_shared<const Plan>(named(plan::long_all_gather(2, 40, 20), "long", 256))});
  plans.push_back({"wide", std::make_shared<const Plan>(named(plan::wide_all_gather(2, 100), "wide", 64))});
  for (const auto& [name, plan] : plans) {
    SCOPED_TRACE(name);
    const PlanFolder folder(*plan);
    for (const char* const compile : {"off", "wait"}) {
      GpuWorld world = world_of(folder, 2);
      world.options.settings().cuda_compile = compile;
      run_gpu_ranks(world, [&, &plan = *plan](Rank& rank) {
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
          run_by_plan(rank, shape_of(plan, 3001, seed % 2 == 0), seed, plan);
        }
      });
    }
  }
}

TEST(PlansAtOnce, AbortEndsAPlanThatWaits) {
  for (const char* const compile : {"off", "wait"}) {
    const Plan plan = named(plan::two_step_all_reduce(2), "two_step", 128);
    const PlanFolder folder(plan);
    GpuWorld world = world_of(folder, 2);
    world.options.settings().cuda_compile = compile;
    world.options.timeout = std::chrono::seconds(60);
    run_gpu_ranks(world, [&](Rank& rank) {
      const CaseShape shape = shape_of(plan, kClustered, false);
      for (std::uint64_t seed = 1; seed <= 3; ++seed) run_by_plan(rank, shape, seed, plan);
      rank.used = 0;
      const Buffers b = prepare(rank, CollectiveCase(shape, rank.size, 9), rank.stream);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      std::string text = "nothing was thrown";
      const auto run = [&] {
        try {
          rank.comm->run(b.call, rank.stream);
          if (rank.rank == 0) {
            if (cudaStreamQuery(rank.stream) != cudaErrorNotReady) throw std::runtime_error("it did not wait");
            rank.comm->abort("enough");
          }
          rank.comm->synchronize(rank.stream);
        } catch (const Error& error) {
          text = error.what();
        }
      };
      if (rank.rank == 0) run();
      rank.barrier->arrive_and_wait();
      if (rank.rank == 1) run();
      if (text.find(rank.rank == 0 ? "enough" : "rank 0") == std::string::npos) throw std::runtime_error(text);
    });
  }
}

// Rank blocks of more than 2 GB: what lies at their beginning and end, and around 2^31 bytes, arrives there.
TEST(PlansAtOnce, MoreThanTwoGigabytes) {
  constexpr std::size_t kBlock = (std::size_t{1} << 31) + 4096 + 12;
  const Plan plan = named(plan::wide_all_gather(2, 64), "wide", 512);
  const PlanFolder folder(plan);
  GpuWorld world = world_of(folder, 2);
  world.memory_bytes = 3 * kBlock + (std::size_t{1} << 20);
  run_gpu_ranks(world, [&](Rank& rank) {
    std::byte* const input = rank.allocate(kBlock);
    std::byte* const output = rank.allocate(2 * kBlock);
    TUTTI_CUDA_OK(cudaMemsetAsync(input, 0x10 + rank.rank, kBlock, rank.stream));
    TUTTI_CUDA_OK(cudaMemsetAsync(output, 0xa5, 2 * kBlock, rank.stream));
    const std::size_t places[] = {0, (std::size_t{1} << 31) - 8, std::size_t{1} << 31, kBlock - 8};
    for (std::size_t i = 0; i < std::size(places); ++i) {
      TUTTI_CUDA_OK(cudaMemsetAsync(input + places[i], 0x40 + 8 * rank.rank + static_cast<int>(i), 8, rank.stream));
    }
    Call call;
    call.collective = Collective::kAllGather;
    call.dtype = DataType::kInt32;
    call.count = kBlock / 4;
    call.input = Blocks::single(input, kBlock);
    call.output = Blocks::single(output, kBlock);
    const std::string taken = rank.comm->explain(call);
    if (taken != "plan:wide") throw std::runtime_error("it takes " + taken);
    rank.comm->run(call, rank.stream);
    rank.comm->synchronize(rank.stream);
    for (int r = 0; r < 2; ++r) {
      for (std::size_t i = 0; i < std::size(places); ++i) {
        const std::byte want{static_cast<unsigned char>(0x40 + 8 * r + static_cast<int>(i))};
        const std::vector<std::byte> got = rank.download(output + static_cast<std::size_t>(r) * kBlock + places[i], 8);
        if (std::any_of(got.begin(), got.end(), [&](std::byte b) { return b != want; })) {
          throw std::runtime_error("rank " + std::to_string(r) + "'s block at " + std::to_string(places[i]));
        }
      }
      const std::vector<std::byte> middle =
          rank.download(output + static_cast<std::size_t>(r) * kBlock + kBlock / 2, 64);
      const std::byte want{static_cast<unsigned char>(0x10 + r)};
      if (std::any_of(middle.begin(), middle.end(), [&](std::byte b) { return b != want; })) {
        throw std::runtime_error("the middle of rank " + std::to_string(r) + "'s block");
      }
    }
  });
}

}  // namespace
}  // namespace tutti::cuda::test
