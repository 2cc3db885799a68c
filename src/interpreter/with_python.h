// Python's global lock, taken by threads that may not have it, for faces that Python has loaded.
//
// Thread rule: any thread, also when the interpreter has ended.
#pragma once

#include <Python.h>

#include "interpreter/left_behind.h"
#include "interpreter/without_python.h"
#include "tutti/error.h"

namespace tutti {

// Whether there is no lock to be had any more. The thread that ends the interpreter has it until the end.
inline bool python_has_ended() noexcept { return Py_IsInitialized() == 0 && !is_lock_holder(); }

class WithPython {
 public:
  // Throws Error(kAborted) where the interpreter has ended.
  WithPython() : state_(ensure()) {}
  ~WithPython() { PyGILState_Release(state_); }
  WithPython(const WithPython&) = delete;
  WithPython& operator=(const WithPython&) = delete;

 private:
  static PyGILState_STATE ensure() {
    if (python_has_ended()) throw_error(ErrorKind::kAborted, "the Python interpreter has ended");
    return ensure_python();
  }

  const PyGILState_STATE state_;
};

// Lets go of a reference on any thread; where the interpreter has ended, its object has, too.
inline void let_go_with_python(PyObject* object) noexcept {
  if (python_has_ended()) return;
  const PyGILState_STATE state = ensure_python();
  Py_XDECREF(object);
  PyGILState_Release(state);
}

}  // namespace tutti
