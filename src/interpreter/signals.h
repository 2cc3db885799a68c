// Python's signal handlers, for the faces that Python loads: run while a call of theirs waits.
#pragma once

#include <Python.h>

#include <exception>
#include <string>

#include "interpreter/left_behind.h"

namespace tutti {

// For Interruption (base/interruption.h): runs the handlers of the signals that have come. What one of them has raised,
// as `Raised`, the exception that the face's binding library makes of Python's, and the name of its type; else null.
// Takes the GIL. Thread rule: any thread, also when the interpreter has ended.
template <class Raised>
std::exception_ptr raised_by_handlers(std::string& name) noexcept {
  if (Py_IsInitialized() == 0) return nullptr;
  std::exception_ptr raised;
  const PyGILState_STATE state = ensure_python();
  // Who waits with an error set, such as a destructor, must not lose it.
  if (PyErr_Occurred() == nullptr && PyErr_CheckSignals() != 0) {
    const std::string path = PyExceptionClass_Name(PyErr_Occurred());  // of a module's, some with its name
    name = path.substr(path.rfind('.') + 1);
    raised = std::make_exception_ptr(Raised());
  }
  PyGILState_Release(state);
  return raised;
}

}  // namespace tutti
