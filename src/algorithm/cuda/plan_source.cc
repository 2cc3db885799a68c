#include "algorithm/compiled/plan_source.h"

#include <algorithm>
#include <memory>

#include "algorithm/plan/plan_cache.h"
#include "base/collective_traits.h"
#include "channel/cuda/device_world.h"
#include "executor/cuda/emit.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti {

KernelText emit_plan(const std::string& text, const PlanSourceRequest& request, const std::string& cache_folder) {
  const std::shared_ptr<const plan::Plan> plan = PlanCache::of_process().prove(text, cache_folder).plan;
  const auto ranks = static_cast<std::int32_t>(plan->ranks.size());
  if (request.rank < 0 || request.rank >= ranks) {
    throw_error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(request.rank) + ": the plan has " + std::to_string(ranks) + " ranks");
  }
  const auto collective = plan::rules_of(plan->collective).call;
  if (!collective) throw_error(ErrorKind::kUnsupported, "a plan of no known collective runs nowhere");
  const bool reducing = reduces(*collective);
  if (const char* reason = executor::refusal(*plan, request.dtype, reducing ? request.op : ReduceOp::kSum)) {
    throw_error(ErrorKind::kUnsupported, std::string("the plan ") + reason);
  }
  executor::DeviceLimits limits;
  limits.blocks = cuda::kMostPlanBlocks;
  const executor::DevicePlan device(plan, request.rank, limits);
  executor::EmitRequest emitted;
  emitted.variant.bytes = std::min(request.bytes, device.segment_bytes());
  emitted.variant.has_input = !traits_of(*collective).root_reads || request.rank == plan->root;
  emitted.variant.has_output = !traits_of(*collective).root_writes || request.rank == plan->root;
  const bool both = emitted.variant.has_input && emitted.variant.has_output;
  emitted.variant.input_in_place = both && request.in_place && plan->in_place;
  emitted.variant.overlaps = both && request.in_place && !plan->in_place;
  emitted.variant.averages = reducing && request.op == ReduceOp::kAvg && emitted.variant.has_output;
  emitted.most_cluster = request.most_cluster;
  if (reducing) emitted.dtype = request.dtype;
  if (reducing && request.op != ReduceOp::kAvg) emitted.op = request.op;
  const executor::PlanSource source = executor::emit(device, emitted);
  return {source.text(), source.workers, source.cluster};
}

}  // namespace tutti
