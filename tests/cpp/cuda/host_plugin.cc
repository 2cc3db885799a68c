// A plug-in for CUDA whose device memory is the host's: its communicators make every call by a Communicator on CPUs, at
// once, so that what lies above a plug-in is tested without a GPU. Like the real one it meets the other ranks under
// kCudaTopic first, takes plans from files and from programs, and follows a tuning table.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "algorithm/cuda/choice.h"
#include "algorithm/cuda/launch_args.h"
#include "algorithm/plan/plan_files.h"
#include "algorithm/plan/verdict_store.h"
#include "algorithm/tuning/tuned.h"
#include "algorithm/user/algorithm_source.h"
#include "base/log.h"
#include "bootstrap/exchange.h"
#include "channel/cuda/gpu_agreement.h"
#include "communicator/cuda/gpu_settings.h"
#include "communicator/cuda/tuned_calls.h"
#include "communicator/group_settings.h"
#include "device/cuda/cuda_reporter.h"
#include "support/cuda_communicators.h"
#include "tutti/device/channel.cuh"
#include "tutti/device/port.cuh"

namespace {

using namespace tutti;

// On one stream everything fails.
bool fails(CudaStream stream) { return stream == reinterpret_cast<CudaStream>(std::uintptr_t{0xfa11}); }
// One stream is always being captured.
bool captures(CudaStream stream) { return stream == reinterpret_cast<CudaStream>(std::uintptr_t{0xca97}); }

// Of the ranks of a process: each rank sees its own only.
class HostMemory final : public CudaMemory {
 public:
  explicit HostMemory(std::size_t bytes) : memory_(bytes) {}
  std::size_t bytes() const noexcept override { return memory_.size(); }
  std::byte* data(int) const noexcept override { return const_cast<std::byte*>(memory_.data()); }
  device::MemoryChannel channel(int, int) const override { throw_error(ErrorKind::kUnsupported, "no channels"); }
  device::PortChannel port(int, int) override { throw_error(ErrorKind::kUnsupported, "no ports"); }
  std::uint32_t port_memory() override { return 0; }

 private:
  std::vector<std::byte> memory_;
};

// Chooses as the real one does, by options and by the tuning table, says so, and runs the call on CPUs: by the plan
// that was chosen, or in the name of the kernel.
class PluginCommunicator final : public test::OnHost<test::BareCommunicator> {
 public:
  PluginCommunicator(Bootstrap& bootstrap, const CudaOptions& options, const Tuning& tuning,
                     const std::string& difference)
      : OnHost(bootstrap, without_tuning(options)),
        messages_only_(options.messages_only),
        has_files_(!options.config->plan_path.empty()),
        forced_(cuda::parse_forced(options.config->cuda_algorithm)) {
    use_files(options);
    if (!difference.empty()) {
      if (rank() == 0)
        Logger(parse_log_level(options.config->log_level), 0).warning(not_used(options.name, difference));
    } else if (tuning.table != nullptr && !forced_) {
      use(bootstrap, tuning);
    }
  }
  void run(const Call& call, CudaStream stream, std::chrono::milliseconds timeout) override {
    if (messages_only_) throw_error(ErrorKind::kInternal, "a collective of a pair");
    const cuda::TunedStep* const step = tuned(call);
    if (step == nullptr || step->plan == nullptr) {
      last_kernel_ = cuda::name_of(cuda::choose(on_gpu(call), step != nullptr ? std::optional(step->kernel) : forced_));
      return OnHost::run(call, stream, timeout);
    }
    Call planned = call;
    const AlgorithmChoice choice{plans_.at(step->plan), {}};
    planned.choice = &choice;
    OnHost::run(planned, stream, timeout);
  }
  std::string candidates(const Call& call) const override {
    const cuda::TunedStep* const step = tuned(call);
    return step != nullptr ? tuned_.explain(shape_of(call), on_gpu(call), *step) : OnHost::candidates(call);
  }
  Metrics metrics() const override {
    Metrics metrics = OnHost::metrics();
    for (MetricsRow& row : metrics.rows) {
      if (!row.algorithm.starts_with("plan:")) row.algorithm = last_kernel_;
    }
    return metrics;
  }
  void set_algorithms(AlgorithmSet set) override {
    BareCommunicator::set_algorithms(set);
    OnHost::set_algorithms(std::move(set));
  }
  std::shared_ptr<CudaMemory> allocate(const std::string&, std::size_t bytes) override {
    return std::make_shared<HostMemory>(bytes);
  }
  bool is_capturing(CudaStream stream) const override { return captures(stream); }
  // As if a kernel waited all the time.
  void follow(std::function<std::optional<Error>()> lost) override {
    const std::lock_guard lock(lost_mutex_);
    lost_ = std::move(lost);
  }
  void look() noexcept override {
    const std::lock_guard lock(lost_mutex_);
    if (!ended_by_ && lost_) ended_by_ = lost_();
  }
  std::optional<Error> failure() const override {
    const std::lock_guard lock(lost_mutex_);
    return ended_by_ ? ended_by_ : OnHost::failure();
  }

 private:
  static CudaOptions without_tuning(CudaOptions options) {
    options.config->tuning_path = "none";
    return options;
  }
  void use(Bootstrap& bootstrap, const Tuning& tuning) {
    std::vector<UserAlgorithmPtr> algorithms;
    for (const PlanFile& file : tuning.plans) algorithms.push_back(plan_algorithm(file));
    cuda::PlanOffer offer(algorithms, nullptr, {rank(), size(), [](int) { return cuda::PlanRoom{64, ""}; }, {}}, false);
    offer.try_new();
    offer.agree(bootstrap.all_gather("plans", offer.text(), std::chrono::minutes(1)));
    table_.add(offer.take_new());
    std::vector<const cuda::TablePlan*> plans;
    for (const UserAlgorithmPtr& algorithm : algorithms) {
      plans.push_back(table_.find(algorithm->identity()));
      plans_[plans.back()] = algorithm;
    }
    tuned_ = cuda::TunedCalls(rules_on_gpus(*tuning.table, size(), gpus()), plans);
  }
  const cuda::TunedStep* tuned(const Call& call) const {
    if (forced_ || has_files_ || call.uneven || call.choice != nullptr) return nullptr;
    return tuned_.step_for(shape_of(call), on_gpu(call));
  }
  CallShape shape_of(const Call& call) const {
    CallShape shape;
    shape.collective = call.collective;
    shape.dtype = call.dtype;
    shape.op = call.op;
    shape.bytes = cuda::agreed_bytes(call, size());
    shape.ranks = size();
    shape.root = call.root;
    return shape;
  }
  cuda::CudaShape on_gpu(const Call& call) const {
    return {call.collective, call.dtype, size(), cuda::agreed_bytes(call, size()), 64, true};
  }

  const bool messages_only_, has_files_;
  const std::optional<cuda::ForcedChoice> forced_;
  cuda::PlanTable table_;
  cuda::TunedCalls tuned_;
  std::map<const cuda::TablePlan*, UserAlgorithmPtr> plans_;
  std::string last_kernel_;
  mutable std::mutex lost_mutex_;  // guards the next two
  std::function<std::optional<Error>()> lost_;
  std::optional<Error> ended_by_;
};

// HOST_PLUGIN_DIES says at which step of what forms this process dies: "agreed".
void die_at(std::string_view step) {
  const char* const dies = std::getenv("HOST_PLUGIN_DIES");
  if (dies != nullptr && step == dies) ::raise(SIGKILL);
}

class HostDevice final : public test::BareDevice, public cuda::CudaReporter {
 public:
  bool is_capturing(int, CudaStream stream) override { return captures(stream); }
  void synchronize_stream(int, CudaStream stream) override {
    if (fails(stream)) throw_error(ErrorKind::kInternal, "what made the array has failed");
  }
  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override { std::memcpy(dst, src, bytes); }
  CudaReport report() override {
    CudaReport report;
    report.devices.resize(1);
    report.devices.front().name = "the host";
    return report;
  }
  void begin_at(std::uint64_t) noexcept override {}
  std::shared_ptr<std::byte> make_memory(std::size_t bytes, int) override {
    return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  }
  StreamCommunicatorPtr make_communicator(const BootstrapPtr& bootstrap, const DeviceOptions& options) override {
    const int size = bootstrap->size();
    die_at("start");
    const PlanFiles plans = load_plans(options.config->plan_path, size, cache_folder(*options.config));
    Tuning tuning;
    if (!options.messages_only) tuning = load_tuning(*options.config, size, TunedDevice::kGpu);
    const cuda::GpuAgreement agreed = cuda::agree_on_gpus(
        *bootstrap, {cuda::gpu_settings(size, options, plans, tuning), options.config->cuda_max_blocks, "no GPU"},
        options.timeout);
    die_at("agreed");
    return std::make_shared<PluginCommunicator>(*bootstrap, options, tuning, agreed.differences);
  }
};

constexpr DevicePlugin kPlugin = test::plugin_of<HostDevice>("cuda");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
