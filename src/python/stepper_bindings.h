// Stepping through a plan from Python. Thread rule: called once, by the module.
#pragma once

#include <nanobind/nanobind.h>

namespace tutti {

void bind_stepper(nanobind::module_& m);

}  // namespace tutti
