// Algorithms that a program names, and memory that all ranks map: what python/tutti/algorithms stands on.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_algorithms(nanobind::module_& m);

}  // namespace tutti
