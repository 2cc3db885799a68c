#include "aten/signals.h"

#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace tutti::face {

std::exception_ptr run_python_handlers(std::string& name) noexcept {
  if (Py_IsInitialized() == 0) return nullptr;
  const py::gil_scoped_acquire held;
  // Who waits with an error set, such as a destructor, must not lose it.
  if (PyErr_Occurred() != nullptr || PyErr_CheckSignals() == 0) return nullptr;
  const py::error_already_set raised;
  name = py::str(raised.type().attr("__name__"));
  return std::make_exception_ptr(raised);
}

}  // namespace tutti::face
