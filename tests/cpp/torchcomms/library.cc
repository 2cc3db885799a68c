// What the backend takes from torchcomms' own library.
#include <comms/torchcomms/TorchCommFactory.hpp>
#include <comms/torchcomms/TorchWork.hpp>
#include <comms/torchcomms/utils/Utils.hpp>
#include <cstdlib>

namespace torch::comms {

std::chrono::milliseconds TorchWork::getTimeout() const { return std::chrono::milliseconds::max(); }

std::pair<int, int> query_ranksize() { return {std::atoi(std::getenv("RANK")), std::atoi(std::getenv("WORLD_SIZE"))}; }

TorchCommFactory& TorchCommFactory::get() {
  static TorchCommFactory factory;
  return factory;
}

}  // namespace torch::comms
