// What the files of this folder include of PyTorch and of TorchComms, compiled once for all of them. A file includes
// what it uses all the same: it must compile without this.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <comms/torchcomms/TorchCommBackend.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>
