// Memory that all ranks of this host map, as arrays of Python: what python/tutti/algorithms/buffers.py stands on.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_buffers(nanobind::module_& m);

}  // namespace tutti
