// Plans in tensors that all ranks have registered: peers reach them where they lie, interpreted and compiled.
#include <set>
#include <string>
#include <string_view>

#include "algorithm/compiled/nvrtc.h"
#include "base/collective_traits.h"
#include "cuda/gpu/plan_ranks.h"
#include "executor/cuda/device_plan.h"
#include "plan/structure.h"
#include "tutti/config.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

constexpr std::size_t kHalf = std::size_t{32} << 20;  // of a rank's arena: the first is registered

class RegisteredPlansOnGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "off") return;
    try {
      Nvrtc::load(config_from_environment().nvrtc);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }
  GpuWorld world(const PlanFolder& folder) const {
    GpuWorld world = world_of(folder, 2);
    world.options.settings().cuda_compile = GetParam();
    return world;
  }
};

// Compiled: some, since each has a kernel for every shape of call.
std::vector<plan::NamedPlan> plans_that_map(bool compiled) {
  auto all = plan::plans_of_every_operation(2, kUnit);
  const std::set<std::string> some{"two_step", "port", "split", "read", "loop", "ring"};
  std::erase_if(all, [&](const auto& named) {
    if (compiled && !some.contains(named.name)) return true;
    const executor::DevicePlan device(named.plan, 0, {64, 1UL << 20});
    return !device.maps_input() && !device.maps_output();
  });
  return all;
}

// Whether the call ran in the tensors themselves.
bool runs_direct(Rank& rank, const CaseShape& shape, std::uint64_t seed, std::size_t arena) {
  rank.used = arena;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.stream);
  const std::uint64_t before = rank.comm->direct_calls();
  rank.comm->run(b.call, rank.stream);
  rank.comm->synchronize(rank.stream);
  verify(rank, c, b, "by " + rank.comm->explain(b.call));
  return rank.comm->direct_calls() != before;
}

// Calls in registered tensors, aligned and not, and in others follow each other; long ones are whole or in segments.
TEST_P(RegisteredPlansOnGpu, AreRightBesideShadows) {
  for (const auto& [name, shared] : plans_that_map(std::string_view(GetParam()) == "wait")) {
    SCOPED_TRACE(name);
    const PlanFolder folder(*shared);
    const CollectiveTraits& traits = traits_of(shape_of(*shared, 1, false).collective);
    const bool all_have_both =
        !traits.root_reads && !traits.root_writes && shared->collective != plan::PlanCollective::kBroadcast;
    run_gpu_ranks(world(folder), [&](Rank& rank) {
      rank.comm->register_memory({{rank.memory, kHalf}});
      std::uint64_t seed = 0;
      for (const std::size_t count : {1000, 70'001}) {
        CaseShape shape = shape_of(*shared, count, false);
        for (shape.shift = 0; shape.shift < 2; ++shape.shift) {
          if (runs_direct(rank, shape, ++seed, 0) != all_have_both) throw std::runtime_error("not where it should run");
        }
        if (runs_direct(rank, shape, ++seed, kHalf)) throw std::runtime_error("its memory is not registered");
        runs_direct(rank, shape_of(*shared, count, true), ++seed, 0);
      }
    });
  }
}

// With changing data; the graph holds the mapping of the peers' tensors.
TEST_P(RegisteredPlansOnGpu, InGraphs) {
  Plan plan = plan::two_step_all_reduce(2);
  plan.reduce = plan::common_reduction(plan);
  plan.name = "graphed";
  const PlanFolder folder(plan);
  run_gpu_ranks(world(folder), [&](Rank& rank) {
    rank.comm->register_memory({{rank.memory, kHalf}});
    const CaseShape shape = shape_of(plan, 5000, false);
    Buffers b = prepare(rank, CollectiveCase(shape, rank.size, 0), rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    cudaGraphExec_t graph = capture(rank.stream, [&] { rank.comm->run(b.call, rank.stream); });
    EXPECT_EQ(rank.comm->direct_calls(), 1u);
    make_ready(rank, graph);
    for (std::uint64_t round = 1; round <= 5; ++round) {
      const CollectiveCase c(shape, rank.size, round);
      rank.upload(b.input, c.input(rank.rank), rank.stream);
      TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
      rank.comm->synchronize(rank.stream);
      verify(rank, c, b, "replay " + std::to_string(round));
    }
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
  });
}

INSTANTIATE_TEST_SUITE_P(Compile, RegisteredPlansOnGpu, testing::Values("off", "wait"));

}  // namespace
}  // namespace tutti::cuda::test
