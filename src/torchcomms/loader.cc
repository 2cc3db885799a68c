// What torchcomms looks for in the library of a backend that it loads by itself.
#include "torchcomms/backend.h"

extern "C" __attribute__((visibility("default"))) torch::comms::DynamicLoaderInterface create_dynamic_loader_tutti() {
  return {
      []() -> torch::comms::TorchCommBackend* { return new tutti::torchcomms::TorchCommTutti; },
      [](torch::comms::TorchCommBackend* communicator) { delete communicator; },
      [] { return torch::comms::TORCHCOMM_BACKEND_ABI_VERSION; },
  };
}
