// Plans as CUDA source, and compiled by NVRTC, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_plan_compiler(nanobind::module_& m);

}  // namespace tutti
