// Binds what tutti.Communicator uses for arrays on GPUs; and what its bindings share with those of main memory.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>

namespace tutti {

// Throws Error(kInvalidArgument) unless it is a number of seconds, 0 or more.
std::chrono::milliseconds milliseconds_of(double seconds);

void bind_devices(nanobind::module_& m);

}  // namespace tutti
