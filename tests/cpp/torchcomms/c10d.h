// The class that torch.distributed makes of a communicator (c10d.cc). `TorchComm` must be bound before.
#pragma once

#include <pybind11/pybind11.h>

void bind_c10d(pybind11::module_& module);
