// Ranks on GPUs whose calls are served by one plan.
#pragma once

#include <cstring>
#include <string>

#include "cuda/gpu/gpu_ranks.h"
#include "executor/executor_plans.h"
#include "plan/operations.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"

namespace tutti::cuda::test {

inline constexpr std::int64_t kUnit = 4096;  // of loops
// Elements of f32, of which each thread block gets so many that several of a GPU's run it (executor::cluster_of()),
// where there are clusters and no other rank is on the GPU.
inline constexpr std::size_t kClustered = 300'001;

// A folder with one plan.
class PlanFolder : public tutti::test::TemporaryFolder {
 public:
  explicit PlanFolder(const plan::Plan& plan) { write("plan.json", plan::write_plan(plan, -1)); }
};

inline GpuWorld world_of(const PlanFolder& folder, int size) {
  GpuWorld world;
  world.size = size;
  world.options.settings().plan_path = folder.path();
  world.options.settings().cuda_compile = "off";
  return world;
}

inline CaseShape shape_of(const plan::Plan& plan, std::size_t count, bool in_place) {
  CaseShape shape;
  shape.collective = *plan::rules_of(plan.collective).call;
  shape.count = count;
  shape.root = plan.root;
  shape.in_place = in_place;
  return shape;
}

inline void run_by_plan(Rank& rank, const CaseShape& shape, std::uint64_t seed, const plan::Plan& plan) {
  rank.used = 0;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.stream);
  const std::string taken = rank.comm->explain(b.call);
  if (taken != "plan:" + plan.name) throw std::runtime_error("it takes " + taken + ", not the plan " + plan.name);
  rank.comm->run(b.call, rank.stream);
  rank.comm->synchronize(rank.stream);
  verify(rank, c, b, plan.name);
}

// Three all-reduces of f32 in one buffer of two ranks, in a graph.
class SumsInAGraph {
 public:
  SumsInAGraph(Rank& rank, const CaseShape& shape)
      : rank_(rank), shape_(shape), buffers_(prepare(rank, CollectiveCase(shape, rank.size, 0), rank.stream)) {
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    graph_ = capture(rank.stream, [&] {
      for (int i = 0; i < 3; ++i) rank.comm->run(buffers_.call, rank.stream);
    });
    make_ready(rank, graph_);
  }
  ~SumsInAGraph() { static_cast<void>(cudaGraphExecDestroy(graph_)); }
  SumsInAGraph(const SumsInAGraph&) = delete;
  SumsInAGraph& operator=(const SumsInAGraph&) = delete;

  // With other data each time: four times the sum of one.
  void replay(std::uint64_t round) const {
    const CollectiveCase c(shape_, rank_.size, round);
    rank_.upload(buffers_.input, c.input(rank_.rank), rank_.stream);
    TUTTI_CUDA_OK(cudaGraphLaunch(graph_, rank_.stream));
    rank_.comm->synchronize(rank_.stream);
    const std::vector<std::byte> once = c.expected(rank_.rank), got = rank_.download(buffers_.output, once.size());
    for (std::size_t i = 0; i + 4 <= once.size(); i += 4) {
      float want = 0, have = 0;
      std::memcpy(&want, &once[i], 4);
      std::memcpy(&have, &got[i], 4);
      if (have != 4 * want) throw std::runtime_error("replay " + std::to_string(round) + ": another sum");
    }
  }

 private:
  Rank& rank_;
  const CaseShape shape_;
  const Buffers buffers_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace tutti::cuda::test
