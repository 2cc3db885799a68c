// Plans on GPUs: the results of collectives, graphs, several streams, faults.
#include <cstring>
#include <optional>

#include "cuda/gpu/gpu_ranks.h"
#include "executor/executor_plans.h"
#include "plan/operations.h"
#include "plan/structure.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

constexpr std::int64_t kUnit = 4096;  // of loops

// A folder with one plan.
class PlanFolder : public tutti::test::TemporaryFolder {
 public:
  explicit PlanFolder(const Plan& plan) { write("plan.json", plan::write_plan(plan, -1)); }
};

GpuWorld world_of(const PlanFolder& folder, int size) {
  GpuWorld world;
  world.size = size;
  world.options.plan_path = folder.path();
  return world;
}

CaseShape shape_of(const Plan& plan, std::size_t count, bool in_place) {
  CaseShape shape;
  shape.collective = *plan::rules_of(plan.collective).call;
  shape.count = count;
  shape.root = plan.root;
  shape.in_place = in_place;
  return shape;
}

void run_by_plan(Rank& rank, const CaseShape& shape, std::uint64_t seed, const Plan& plan) {
  rank.used = 0;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.stream);
  const std::string taken = rank.comm->explain(b.call);
  if (taken != "plan:" + plan.name) throw std::runtime_error("it takes " + taken + ", not the plan " + plan.name);
  rank.comm->run(b.call, rank.stream);
  rank.comm->synchronize(rank.stream);
  verify(rank, c, b, plan.name);
}

TEST(PlansOnGpu, EveryOperation) {
  for (const int size : {2, 3}) {
    for (const auto& [name, shared] : plan::plans_of_every_operation(size, kUnit)) {
      const Plan& plan = *shared;
      SCOPED_TRACE(plan.name);
      const PlanFolder folder(plan);
      run_gpu_ranks(world_of(folder, size), [&](Rank& rank) {
        std::uint64_t seed = 0;
        for (const std::size_t count : {1, 100, 3000, 70'001}) {
          for (const bool in_place : {false, true}) {
            run_by_plan(rank, shape_of(plan, count, in_place), ++seed, plan);
          }
        }
      });
    }
  }
}

TEST(PlansOnGpu, TypesAndOperations) {
  Plan plan = plan::packet_two_step_all_reduce(2);
  plan.name = "packets";
  plan.reduce = plan::common_reduction(plan);
  const PlanFolder folder(plan);
  run_gpu_ranks(world_of(folder, 2), [&](Rank& rank) {
    std::uint64_t seed = 0;
    for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32, DataType::kFloat64,
                                 DataType::kInt8, DataType::kInt64, DataType::kFloat8E4M3fn, DataType::kComplex64}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        if (op == ReduceOp::kAvg && dtype == DataType::kFloat8E4M3fn) continue;  // rounds twice
        CaseShape shape = shape_of(plan, 1003, ++seed % 2 == 0);
        shape.dtype = dtype;
        shape.op = op;
        run_by_plan(rank, shape, seed, plan);
      }
    }
  });
}

// Replays with other data, eager calls of another size and of no plan between them, on two streams.
TEST(PlansOnGpu, GraphsAndEagerCalls) {
  for (Plan plan : {plan::packet_two_step_all_reduce(2), plan::ring_all_reduce(2), plan::two_step_all_reduce(2)}) {
    plan.name = "graphed";
    plan.reduce = plan::common_reduction(plan);
    const PlanFolder folder(plan);
    run_gpu_ranks(world_of(folder, 2), [&](Rank& rank) {
      const CaseShape shape = shape_of(plan, 5000, true), other = shape_of(plan, 777, false);
      CaseShape native = shape;
      native.collective = Collective::kAllGather;
      const Buffers b = prepare(rank, CollectiveCase(shape, rank.size, 0), rank.stream);
      const std::size_t used = rank.used;
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
      for (int i = 0; i < 3; ++i) rank.comm->run(b.call, rank.stream);
      TUTTI_CUDA_OK(cudaStreamEndCapture(rank.stream, &graph));
      TUTTI_CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
      TUTTI_CUDA_OK(cudaGraphDestroy(graph));
      TUTTI_CUDA_OK(cudaGraphUpload(executable, rank.stream));
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      rank.barrier->arrive_and_wait();
      for (std::uint64_t round = 1; round <= 10; ++round) {
        const CollectiveCase c(shape, rank.size, round);
        rank.upload(b.input, c.input(rank.rank), rank.stream);
        TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
        rank.comm->synchronize(rank.stream);
        // Three all-reduces of two ranks: four times the sum of one.
        const std::vector<std::byte> once = c.expected(rank.rank), got = rank.download(b.output, once.size());
        for (std::size_t i = 0; i + 4 <= once.size(); i += 4) {
          float want = 0, have = 0;
          std::memcpy(&want, &once[i], 4);
          std::memcpy(&have, &got[i], 4);
          if (have != 4 * want) throw std::runtime_error("replay " + std::to_string(round) + ": another sum");
        }
        for (const CaseShape& eager : {other, native}) {
          rank.used = used;
          const CollectiveCase e(eager, rank.size, 100 + round);
          const cudaStream_t stream = round % 2 == 0 ? rank.stream : rank.other_stream;
          const Buffers buffers = prepare(rank, e, stream);
          rank.comm->run(buffers.call, stream);
          rank.comm->synchronize(stream);
          verify(rank, e, buffers, "eager");
        }
      }
      TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
    });
  }
}

TEST(PlansOnGpu, AMissingRankIsATimeout) {
  for (const auto& [name, shared] : plan::plans_of_every_operation(2, kUnit)) {
    const Plan& plan = *shared;
    if (plan.collective != plan::PlanCollective::kAllReduce) continue;
    SCOPED_TRACE(plan.name);
    const PlanFolder folder(plan);
    run_gpu_ranks(world_of(folder, 2), [&](Rank& rank) {
      rank.comm->set_timeout(std::chrono::milliseconds(200));
      if (rank.rank == 0) {
        std::string text;
        try {
          run_and_verify(rank, shape_of(plan, 1000, false), 1);
        } catch (const Error& error) {
          text = error.what();
        }
        if (text.find("rank 1 did not come") == std::string::npos) {
          throw std::runtime_error("not the error that names the rank: " + text);
        }
      }
      rank.barrier->arrive_and_wait();
    });
  }
}

// Ranks with other plans find it out when the group is made.
TEST(PlansOnGpu, OtherPlansAreAnErrorOfAllRanks) {
  const PlanFolder folder(*plan::plans_of_every_operation(2, kUnit).front().plan);
  MemoryStore store;
  std::vector<std::thread> threads;
  std::string texts[2];
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      CudaOptions options;
      options.device = r % device_count();
      options.timeout = std::chrono::seconds(10);
      options.plan_path = r == 0 ? folder.path() : "none";
      try {
        CudaCommunicator::create(store, "other plans", r, 2, options);
      } catch (const Error& error) {
        texts[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_NE(text.find("ranks have different plans"), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::cuda::test
