// What tutti._core offers on plans.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_plans(nanobind::module_& m);

}  // namespace tutti
