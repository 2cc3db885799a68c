// What `tutti tune` needs of the library.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_tuning(nanobind::module_& m);

}  // namespace tutti
