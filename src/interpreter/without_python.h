// Python's global lock, for faces that Python has loaded: let go of while a thread waits for others that may want it.
//
// Thread rule: any thread, whether it holds the lock or not, also before the interpreter is there and when it has
// ended: a thread of the program's that has let go of the lock and finds the interpreter ended stays behind
// (left_behind.h).
#pragma once

#include <Python.h>

#include <memory>
#include <utility>

#include "interpreter/left_behind.h"

namespace tutti {

// Whether this thread holds the lock, also while it ends the interpreter. PyGILState_Check() says yes to everybody once
// there are subinterpreters; threads of those are taken for such as do not hold it.
inline bool is_lock_holder() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  const PyThreadState* const holder = PyThreadState_GetUnchecked();
#else
  const PyThreadState* const holder = _PyThreadState_UncheckedGet();
#endif
  return holder != nullptr && holder == PyGILState_GetThisThreadState();
}

// Whether this thread holds the lock of an interpreter that others may still use.
inline bool holds_python() noexcept { return Py_IsInitialized() != 0 && is_lock_holder(); }

class WithoutPython {
 public:
  WithoutPython() noexcept : held_(holds_python() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutPython() {
    if (held_ == nullptr) return;
    if (Py_IsInitialized() == 0 && !on_library_thread()) stay_behind();
    restore_python(held_);
  }
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;

 private:
  PyThreadState* const held_;
};

// Runs `action` without the lock.
template <class Action>
decltype(auto) without_python(const Action& action) {
  const WithoutPython released;
  return action();
}

// Another owner of `*object`: when the last of its copies goes, `object` does, without the lock. For what joins threads
// when it ends. Raises std::bad_alloc.
template <class T>
std::shared_ptr<T> ending_without_python(std::shared_ptr<T> object) {
  T* const address = object.get();
  return std::shared_ptr<T>(address,
                            [object = std::move(object)](T*) mutable { without_python([&] { object.reset(); }); });
}

}  // namespace tutti
