#include "python/signals.h"

namespace nb = nanobind;

namespace tutti {

std::exception_ptr run_python_handlers(std::string& name) noexcept {
  if (Py_IsInitialized() == 0) return nullptr;
  const nb::gil_scoped_acquire held;
  // Who waits with an error set, such as a destructor, must not lose it.
  if (PyErr_Occurred() != nullptr || PyErr_CheckSignals() == 0) return nullptr;
  const nb::python_error raised;
  name = nb::str(raised.type().attr("__name__")).c_str();
  return std::make_exception_ptr(raised);
}

}  // namespace tutti
