// The simulator of plans as tutti._core offers it.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_simulator(nanobind::module_& m);

}  // namespace tutti
