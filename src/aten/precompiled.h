// What most files of this folder and of src/torch include of PyTorch, compiled once for all of them. A file includes
// what it uses all the same: it must compile without this.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
