#include "communicator/cuda/compiled_plans.h"

#include <utility>

#include "algorithm/cuda/team.cuh"
#include "channel/cuda/device_world.h"
#include "communicator/cuda/plan_room.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/loaded_module.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// How many clusters of `size` blocks of `threads` threads the device runs at once.
int clusters_of(CUfunction function, int size, int threads) {
  CUlaunchAttribute how{};
  how.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  how.value.clusterDim = {static_cast<unsigned>(size), 1, 1};
  const CUlaunchConfig config{
      static_cast<unsigned>(size), 1, 1, static_cast<unsigned>(threads), 1, 1, 0, nullptr, &how, 1};
  int most = 0;
  check_driver(driver().most_clusters(&most, function, &config), "cuOccupancyMaxActiveClusters");
  return most;
}

}  // namespace

struct CompiledPlans::Loaded final : LoadedCode {
  explicit Loaded(const std::string& cubin) : module(cubin) {}
  LoadedModule module;
  Kernel kernel;
};

CompiledPlans::CompiledPlans(const Options& options)
    : processors_(options.processors),
      sharers_(options.sharers),
      requests_({options.mode, options.cache_folder, architecture_of(options.device), options.nvrtc, options.logger}) {}

const CompiledPlans::Kernel* CompiledPlans::find(const std::shared_ptr<const executor::DevicePlan>& plan,
                                                 const executor::EmitRequest& request, bool may_load) {
  const LoadedCode* const found = requests_.find(plan, request, may_load);
  return found != nullptr ? &static_cast<const Loaded*>(found)->kernel : nullptr;
}

void CompiledPlans::load() noexcept {
  requests_.load_ready(
      [this](const CompiledPlanCode& code, const executor::DevicePlan& plan) { return load(code, plan); });
}

std::unique_ptr<LoadedCode> CompiledPlans::load(const CompiledPlanCode& code, const executor::DevicePlan& plan) const {
  auto loaded = std::make_unique<Loaded>(code.cubin());
  const CUfunction function = loaded->module.function("tutti_plan");
  // The plan was admitted by the interpreter's registers.
  const int threads = code.workers() + kControlThreads;
  int each = 0;
  check_driver(driver().blocks_a_processor(&each, function, threads, 0), "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const PlanRoom room = room_of(processors_, each, threads, sharers_, kMostPlanBlocks);
  if (plan.blocks() > room.blocks) throw_error(ErrorKind::kUnsupported, room.why);
  if (code.cluster() > 1) {
    const int clusters = clusters_of(function, code.cluster(), threads);
    if (plan.blocks() > clusters) {
      throw_error(ErrorKind::kUnsupported, "the GPU has room for " + std::to_string(clusters) + " clusters of " +
                                               std::to_string(code.cluster()) + " blocks, and the plan has " +
                                               std::to_string(plan.blocks()) + " thread blocks");
    }
  }
  loaded->kernel = {function, code.workers(), code.cluster()};
  return loaded;
}

}  // namespace tutti::cuda
