// Devices and communicators on them, in libtutti.so: finds the plug-in and passes the call on.
#include "communicator/device_entry.h"

#include <dlfcn.h>

#include "base/log.h"
#include "base/release.h"
#include "bootstrap/exchange.h"
#include "communicator/failure_watch.h"
#include "tutti/device_communicator.h"

namespace tutti {
namespace {

// What a caller holds of a communicator: looked at as long as it does.
struct Watched {
  ~Watched() { FailureWatch::of_process().remove(number); }
  StreamCommunicatorPtr communicator;
  std::uint64_t number = 0;
};

StreamCommunicatorPtr watched(StreamCommunicatorPtr communicator, const Config& config) {
  const bool silent = config.cuda_watchdog == "none";
  if (silent && !communicator->must_be_looked_at()) return communicator;
  StreamCommunicator* const here = communicator.get();
  const auto holder = std::make_shared<Watched>();
  holder->communicator = std::move(communicator);
  // A failure's text names group and rank.
  holder->number = FailureWatch::of_process().add(Logger(parse_log_level(config.log_level), -1),
                                                  config.cuda_watchdog == "end", [here, silent] {
                                                    here->look();
                                                    return silent ? std::nullopt : here->failure();
                                                  });
  return {holder, here};
}

}  // namespace

DeviceRegistry& device_registry(const Config* config) {
  static DeviceRegistry* const instance = new DeviceRegistry(DeviceRegistry::default_directories(
      config != nullptr ? config->plugin_path : config_from_environment().plugin_path));
  return *instance;
}

Device& device_of_kind(const std::string& kind) { return device_registry().find(kind); }

StreamCommunicatorPtr make_communicator(const std::string& kind, const BootstrapPtr& bootstrap,
                                        const DeviceOptions& options) {
  return telling(*bootstrap, [&] {
    DeviceOptions complete = options;
    Config& config = complete.settings();
    if (complete.messages_only) config.plan_path.clear();
    auto made = device_registry(&config).find(kind).make_communicator(bootstrap, complete);
    return watched(released_by_owner(std::move(made)), config);
  });
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

}  // namespace tutti
