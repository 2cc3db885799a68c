// Compiled plans on GPUs: results, mixed with ranks that interpret, graphs, faults. Skipped where there is no NVRTC.
#include <atomic>
#include <set>
#include <string>

#include "algorithm/compiled/nvrtc.h"
#include "cuda/gpu/plan_ranks.h"
#include "plan/structure.h"
#include "tutti/config.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

class CompiledPlansOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    try {
      Nvrtc::load(config_from_environment().nvrtc);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

GpuWorld compiled_world(const PlanFolder& folder, int size, const char* mode = "wait") {
  GpuWorld world = world_of(folder, size);
  world.options.settings().cuda_compile = mode;
  return world;
}

std::uint64_t compiled_calls(Rank& rank) {
  std::uint64_t calls = 0;
  for (const MetricsRow& row : rank.comm->metrics().rows) {
    calls += row.algorithm.ends_with("+compiled") ? row.calls : 0;
  }
  return calls;
}

// One rank after another issues its call: while it does, the others are quiet, so what is ready gets loaded.
void in_turns(Rank& rank, const CaseShape& shape, std::uint64_t seed, const Plan& plan) {
  rank.used = 0;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.stream);
  TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
  for (int r = 0; r < rank.size; ++r) {
    rank.barrier->arrive_and_wait();
    if (r == rank.rank) rank.comm->run(b.call, rank.stream);
  }
  rank.comm->synchronize(rank.stream);
  verify(rank, c, b, plan.name);
  rank.barrier->arrive_and_wait();
}

// The first call of a size is compiled on the first rank and interpreted on those behind it; at the third all are
// compiled.
void warm_up(Rank& rank, const CaseShape& shape, const Plan& plan) {
  const std::uint64_t before = compiled_calls(rank);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) in_turns(rank, shape, seed, plan);
  if (compiled_calls(rank) == before) throw std::runtime_error(plan.name + ": no call ran compiled");
}

TEST_F(CompiledPlansOnGpu, EveryOperation) {
  for (const auto& [name, shared] : plan::plans_of_every_operation(2, kUnit)) {
    const Plan& plan = *shared;
    SCOPED_TRACE(plan.name);
    const PlanFolder folder(plan);
    run_gpu_ranks(compiled_world(folder, 2), [&](Rank& rank) {
      warm_up(rank, shape_of(plan, 3001, false), plan);
      for (std::uint64_t seed = 10; seed < 20; ++seed) run_by_plan(rank, shape_of(plan, 3001, true), seed, plan);
    });
  }
}

// Every kind of record once: these kernels take seconds to compile.
TEST_F(CompiledPlansOnGpu, Clusters) {
  for (const auto& [name, shared] : plan::plans_of_every_operation(2, kUnit)) {
    if (!std::set<std::string>{"two_step", "packet_two_step", "ring", "port_packets", "one_shot", "fenced",
                               "kept_packets"}
             .contains(name)) {
      continue;
    }
    const Plan& plan = *shared;
    SCOPED_TRACE(plan.name);
    const PlanFolder folder(plan);
    run_gpu_ranks(compiled_world(folder, 2), [&](Rank& rank) {
      warm_up(rank, shape_of(plan, kClustered, true), plan);
      for (std::uint64_t seed = 10; seed < 20; ++seed) run_by_plan(rank, shape_of(plan, kClustered, true), seed, plan);
    });
  }
}

// Calls go on while the compiler works, and its code is loaded between them: ranks go over one by one, at any time.
TEST_F(CompiledPlansOnGpu, LoadedBesideCalls) {
  for (Plan plan : {plan::packet_two_step_all_reduce(2), plan::ring_all_reduce(2)}) {
    plan.name = "beside";
    plan.reduce = plan::common_reduction(plan);
    const PlanFolder folder(plan);
    std::atomic<int> over{0};
    run_gpu_ranks(compiled_world(folder, 2, "on"), [&](Rank& rank) {
      const CaseShape shape = shape_of(plan, 40'000, false);
      bool compiled = false;
      for (std::uint64_t round = 1, left = 50; left > 0; ++round) {
        if (round == 100'000) throw std::runtime_error("its code was never loaded");
        rank.used = 0;
        const CollectiveCase c(shape, rank.size, round);
        const Buffers b = prepare(rank, c, rank.stream);
        for (std::uint64_t call = 0; call < 1 + round % 4; ++call) rank.comm->run(b.call, rank.stream);
        rank.comm->synchronize(rank.stream);
        verify(rank, c, b, plan.name);
        if (!compiled && compiled_calls(rank) > 0) {
          compiled = true;
          ++over;
        }
        rank.barrier->arrive_and_wait();
        left -= over == rank.size ? 1 : 0;  // the same on all ranks
        rank.barrier->arrive_and_wait();
      }
    });
  }
}

TEST_F(CompiledPlansOnGpu, TypesAndOperations) {
  Plan plan = plan::packet_two_step_all_reduce(2);
  plan.name = "packets";
  plan.reduce = plan::common_reduction(plan);
  const PlanFolder folder(plan);
  run_gpu_ranks(compiled_world(folder, 2), [&](Rank& rank) {
    for (const auto& [dtype, op] : {std::pair{DataType::kBfloat16, ReduceOp::kSum},
                                    {DataType::kFloat16, ReduceOp::kAvg},
                                    {DataType::kFloat64, ReduceOp::kSum},
                                    {DataType::kInt8, ReduceOp::kSum},
                                    {DataType::kFloat8E4M3fn, ReduceOp::kSum},
                                    {DataType::kComplex64, ReduceOp::kSum}}) {
      CaseShape shape = shape_of(plan, 1003, false);
      shape.dtype = dtype;
      shape.op = op;
      warm_up(rank, shape, plan);
    }
  });
}

// Replays with other data; the graph has compiled kernels, because the calls before it had.
TEST_F(CompiledPlansOnGpu, Graphs) {
  for (Plan plan : {plan::packet_two_step_all_reduce(2), plan::ring_all_reduce(2), plan::two_step_all_reduce(2)}) {
    plan.name = "graphed";
    plan.reduce = plan::common_reduction(plan);
    const PlanFolder folder(plan);
    run_gpu_ranks(compiled_world(folder, 2), [&](Rank& rank) {
      const std::vector<std::size_t> counts{5000, kClustered};
      // First: who has captured a call is never known to be quiet again, and gets no more code.
      for (const std::size_t count : counts) warm_up(rank, shape_of(plan, count, true), plan);
      for (const std::size_t count : counts) {
        const CaseShape shape = shape_of(plan, count, true);
        rank.used = 0;
        const std::uint64_t before = compiled_calls(rank);
        const SumsInAGraph graph(rank, shape);
        if (compiled_calls(rank) != before + 3) throw std::runtime_error("what was captured is not compiled");
        for (std::uint64_t round = 1; round <= 10; ++round) graph.replay(round);
      }
    });
  }
}

TEST_F(CompiledPlansOnGpu, AMissingRankIsATimeout) {
  for (const auto& [name, shared] : plan::plans_of_every_operation(2, kUnit)) {
    const Plan& plan = *shared;
    if (plan.collective != plan::PlanCollective::kAllReduce) continue;
    SCOPED_TRACE(plan.name);
    const PlanFolder folder(plan);
    run_gpu_ranks(compiled_world(folder, 2), [&](Rank& rank) {
      const CaseShape shape = shape_of(plan, kClustered, false);
      warm_up(rank, shape, plan);
      rank.comm->set_timeout(std::chrono::milliseconds(200));
      if (rank.rank == 0) {
        std::string text;
        try {
          run_and_verify(rank, shape, 1);
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

}  // namespace
}  // namespace tutti::cuda::test
