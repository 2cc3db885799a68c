// Ranks on GPUs whose calls are served by one plan.
#pragma once

#include <string>

#include "cuda/gpu/gpu_ranks.h"
#include "executor/executor_plans.h"
#include "plan/operations.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"

namespace tutti::cuda::test {

inline constexpr std::int64_t kUnit = 4096;  // of loops

// A folder with one plan.
class PlanFolder : public tutti::test::TemporaryFolder {
 public:
  explicit PlanFolder(const plan::Plan& plan) { write("plan.json", plan::write_plan(plan, -1)); }
};

inline GpuWorld world_of(const PlanFolder& folder, int size) {
  GpuWorld world;
  world.size = size;
  world.options.plan_path = folder.path();
  world.options.compile = "off";
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

}  // namespace tutti::cuda::test
