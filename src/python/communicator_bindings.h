// The communicator in Python, without torch: on NumPy arrays and whatever else offers its memory by DLPack.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_communicator(nanobind::module_& m);

}  // namespace tutti
