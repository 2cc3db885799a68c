// Communicators on devices, in libtutti.so: finds the plug-in and passes the call on.
#include <dlfcn.h>

#include "algorithm/cuda/choice.h"
#include "base/log.h"
#include "base/release.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/exchange.h"
#include "communicator/call_check.h"
#include "communicator/device_entry.h"
#include "communicator/failure_watch.h"
#include "device/registry.h"
#include "tutti/config.h"
#include "tutti/cuda_capture.h"
#include "tutti/cuda_communicator.h"
#include "tutti/cuda_report.h"
#include "tutti/device_communicator.h"

namespace tutti {
namespace {

// A plug-in stays loaded as long as the process, and so does the registry that has loaded it. The search path of the
// first caller counts.
DeviceRegistry& registry(const Config& config) {
  static DeviceRegistry* const instance = new DeviceRegistry(DeviceRegistry::default_directories(config.plugin_path));
  return *instance;
}

// With what the environment says where the caller has left it open.
CudaOptions completed(const CudaOptions& options) {
  CudaOptions complete = options;
  if (!complete.config) complete.config = config_from_environment();
  const Config& config = *complete.config;
  if (complete.transport.empty()) complete.transport = config.cuda_transport;
  if (complete.algorithm.empty()) complete.algorithm = config.cuda_algorithm;
  if (complete.max_blocks == 0) complete.max_blocks = config.cuda_max_blocks;
  if (complete.flight_recorder_entries < 0) complete.flight_recorder_entries = config.flight_recorder_entries;
  if (complete.plan_path.empty()) complete.plan_path = config.plan_path;
  if (complete.plan_path == "none" || complete.messages_only) complete.plan_path.clear();
  if (complete.compile.empty()) complete.compile = config.cuda_compile;
  if (complete.secret.empty()) complete.secret = config.secret;
  return complete;
}

// What a caller holds of a communicator: looked at as long as it does.
struct Watched {
  ~Watched() { FailureWatch::of_process().remove(number); }
  std::shared_ptr<CudaCommunicator> communicator;
  std::uint64_t number = 0;
};

std::shared_ptr<CudaCommunicator> watched(std::shared_ptr<CudaCommunicator> communicator, const Config& config) {
  if (config.cuda_watchdog == "none") return communicator;
  CudaCommunicator* const here = communicator.get();
  const auto holder = std::make_shared<Watched>();
  holder->communicator = std::move(communicator);
  // A failure's text names group and rank.
  holder->number = FailureWatch::of_process().add(Logger(parse_log_level(config.log_level), -1),
                                                  config.cuda_watchdog == "end", [here] { return here->failure(); });
  return {holder, here};
}

}  // namespace

Device& device_of_kind(const std::string& kind) { return registry(config_from_environment()).find(kind); }

std::shared_ptr<CudaCommunicator> make_communicator(const std::string& kind, const BootstrapPtr& bootstrap,
                                                    const CudaOptions& options) {
  return telling(*bootstrap, [&] {
    const CudaOptions complete = completed(options);
    auto made = registry(*complete.config).find(kind).make_communicator(bootstrap, complete);
    return watched(released_by_owner(std::move(made)), *complete.config);
  });
}

std::shared_ptr<CudaCommunicator> CudaCommunicator::create(std::shared_ptr<Store> store, const std::string& id,
                                                           int rank, int size, const CudaOptions& options) {
  check_group(rank, size);
  return make_communicator("cuda", store_bootstrap(std::move(store), id, rank, size), options);
}

std::string CudaCommunicator::library() { return registry(config_from_environment()).path_of("cuda"); }

void CudaCommunicator::load() { static_cast<void>(device_of_kind("cuda")); }

std::shared_ptr<std::byte> make_cuda_memory(std::size_t bytes, int device) {
  if (bytes == 0) throw_error(ErrorKind::kInvalidArgument, "a buffer has at least one byte");
  return device_of_kind("cuda").make_memory(bytes, device);
}

void copy_cuda_memory(void* to, const void* from, std::size_t bytes) { device_of_kind("cuda").copy(to, from, bytes); }

CudaReport cuda_report() {
  try {
    return device_of_kind("cuda").report();
  } catch (const Error& e) {
    CudaReport report;
    report.plugin_problem = e.what();
    return report;
  }
}

// A process that has not loaded CUDA's driver has no memory of its devices: then nothing is loaded to find that out.
std::optional<int> device_of(const std::string& kind, const void* address) {
  if (kind == "cuda") {
    void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == nullptr) return std::nullopt;
    ::dlclose(driver);
  }
  try {
    const int index = device_of_kind(kind).index_of(address);
    return index >= 0 ? std::optional(index) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // no plug-in
  }
}

bool cuda_is_capturing(int device, CudaStream stream) { return device_of_kind("cuda").is_capturing(device, stream); }

void cuda_relax_capture_in_thread() { device_of_kind("cuda").relax_capture_in_thread(); }

std::vector<std::string> CudaCommunicator::algorithms() { return cuda::algorithm_names(); }

std::vector<std::string> CudaCommunicator::algorithms(Collective collective) { return cuda::kernel_names(collective); }

}  // namespace tutti
