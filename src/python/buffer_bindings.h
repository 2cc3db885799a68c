// Memory that all ranks map, of this host or of a GPU, as Python's arrays take it: what
// python/tutti/algorithms/buffers.py stands on.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_buffers(nanobind::module_& m);

}  // namespace tutti
