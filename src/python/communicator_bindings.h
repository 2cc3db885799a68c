// The communicator in Python, without torch: on NumPy arrays and whatever else offers its memory by DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "tutti/store.h"

namespace tutti {

// A store written in Python (or torch's): set(key, bytes), get(key) -> bytes, add(key, amount), wait(keys, timedelta).
// Its methods are called with the interpreter held; callers in the library have released it.
std::shared_ptr<Store> python_store(nanobind::object store);

void bind_communicator(nanobind::module_& m);

}  // namespace tutti
