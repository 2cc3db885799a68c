#include "communicator/cuda/compiled_plans.h"

#include <utility>

#include "algorithm/cuda/team.cuh"
#include "channel/cuda/device_world.h"
#include "communicator/cuda/plan_room.h"
#include "communicator/cuda/quiet_device.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
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

CompileMode parse_compile_mode(const std::string& text) {
  if (text == "off") return CompileMode::kOff;
  if (text == "on") return CompileMode::kOn;
  if (text == "wait") return CompileMode::kWait;
  throw_error(ErrorKind::kInvalidArgument, "TUTTI_CUDA_COMPILE=" + text + ": it may be off, on or wait");
}

CompiledPlans::CompiledPlans(const Options& options)
    : mode_(options.mode),
      logger_(options.logger),
      processors_(options.processors),
      sharers_(options.sharers),
      compiler_(options.cache_folder, architecture_of(options.device), options.nvrtc) {}

CompiledPlans::~CompiledPlans() = default;

const CompiledPlans::Kernel* CompiledPlans::find(const std::shared_ptr<const executor::DevicePlan>& plan,
                                                 const executor::EmitRequest& request) {
  if (mode_ == CompileMode::kOff) return nullptr;
  const Key key{plan.get(), request.variant, request.dtype, request.op};
  auto found = items_.find(key);
  if (found == items_.end()) {
    if (items_.size() >= kMostKernels) return nullptr;
    Item asked;
    asked.plan = plan;
    try {
      asked.code = compiler_.request([plan, request] {
        const executor::PlanSource source = executor::emit(*plan, request);
        return KernelText{source.text(), source.workers, source.cluster};
      });
    } catch (const Error& error) {  // no thread: a call does not fail for that, on this rank alone
      logger_.warning("plan:" + plan->plan().name + " is interpreted: " + error.what());
      return nullptr;
    }
    found = items_.emplace(key, std::move(asked)).first;
    ++open_;
    QuietDevice::of_process().count(1);
    if (mode_ == CompileMode::kWait) PlanCompiler::wait(*found->second.code);
  }
  Item& item = found->second;
  if (!item.given_up && item.code->state() == CompiledPlanCode::State::kFailed) give_up(item);
  return item.kernel.function != nullptr ? &item.kernel : nullptr;
}

void CompiledPlans::settle() noexcept {
  --open_;
  QuietDevice::of_process().count(-1);
}

void CompiledPlans::give_up(Item& item) {
  item.given_up = true;
  settle();
  logger_.info("plan:" + item.plan->plan().name + " is interpreted: " + item.code->why());
}

void CompiledPlans::load() noexcept {
  if (open_ == 0) return;
  for (auto& [key, item] : items_) {
    if (item.kernel.function != nullptr || item.given_up) continue;
    const CompiledPlanCode::State state = item.code->state();
    // Also of a size that is not called again: nobody looks for it any more.
    if (state == CompiledPlanCode::State::kFailed) give_up(item);
    if (state != CompiledPlanCode::State::kReady) continue;
    settle();
    try {
      load(item);
    } catch (const Error& error) {
      item.given_up = true;
      logger_.warning("plan:" + item.plan->plan().name +
                      " is interpreted, because its code cannot be loaded: " + error.what());
    }
  }
}

void CompiledPlans::load(Item& item) const {
  item.module = std::make_unique<LoadedModule>(item.code->cubin());
  const CUfunction function = item.module->function("tutti_plan");
  // The plan was admitted by the interpreter's registers.
  const int threads = item.code->workers() + kControlThreads;
  int each = 0;
  check_driver(driver().blocks_a_processor(&each, function, threads, 0), "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const PlanRoom room = room_of(processors_, each, threads, sharers_, kMostPlanBlocks);
  if (item.plan->blocks() > room.blocks) throw_error(ErrorKind::kUnsupported, room.why);
  if (item.code->cluster() > 1) {
    const int clusters = clusters_of(function, item.code->cluster(), threads);
    if (item.plan->blocks() > clusters) {
      throw_error(ErrorKind::kUnsupported, "the GPU has room for " + std::to_string(clusters) + " clusters of " +
                                               std::to_string(item.code->cluster()) + " blocks, and the plan has " +
                                               std::to_string(item.plan->blocks()) + " thread blocks");
    }
  }
  item.kernel = {function, item.code->workers(), item.code->cluster()};
}

void CompiledPlans::end_compiling() noexcept {
  compiler_.end();
  std::erase_if(items_, [](const auto& entry) { return entry.second.kernel.function == nullptr; });
  QuietDevice::of_process().count(-open_);
  open_ = 0;
}

void CompiledPlans::unload() noexcept {
  items_.clear();
  QuietDevice::of_process().count(-open_);
  open_ = 0;
}

}  // namespace tutti::cuda
