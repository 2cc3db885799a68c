// CudaCommunicator::create in libtutti.so: finds the plug-in and passes the call on.
#include "algorithm/cuda/choice.h"
#include "communicator/call_check.h"
#include "device/registry.h"
#include "tutti/config.h"
#include "tutti/cuda_communicator.h"

namespace tutti {
namespace {

// A plug-in stays loaded as long as the process, and so does the registry that has loaded it. The search path of the
// first caller counts.
DeviceRegistry& registry(const Config& config) {
  static DeviceRegistry* const instance = new DeviceRegistry(DeviceRegistry::default_directories(config.plugin_path));
  return *instance;
}

}  // namespace

std::shared_ptr<CudaCommunicator> CudaCommunicator::create(Store& store, const std::string& id, int rank, int size,
                                                           const CudaOptions& options) {
  check_group(rank, size);
  const Config config = config_from_environment();
  CudaOptions complete = options;
  if (complete.transport.empty()) complete.transport = config.cuda_transport;
  if (complete.algorithm.empty()) complete.algorithm = config.cuda_algorithm;
  if (complete.secret.empty()) complete.secret = config.secret;
  return registry(config).find("cuda").make_communicator(store, id, rank, size, complete);
}

std::string CudaCommunicator::library() { return registry(config_from_environment()).path_of("cuda"); }

std::vector<std::string> CudaCommunicator::algorithms() { return cuda::algorithm_names(); }

}  // namespace tutti
