// A stand-in for TorchComms' look at its environment (TorchCommBackend.hpp).
#pragma once

#include <utility>

namespace torch::comms {

std::pair<int, int> query_ranksize();

}  // namespace torch::comms
