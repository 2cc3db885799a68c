// Threads that Python leaves behind when it ends.
//
// A daemon thread may wait in the library, without Python's lock, while the interpreter ends. Where it then asks for
// the lock, Python before 3.14 ends it by pthread_exit(), which unwinds its stack as an exception would, up to the
// first function that lets none pass: that ends the process. So such a thread stays where it is until the process ends,
// as Python 3.14 has it do. One of the library's own does not: it is joined at the end, and asks for the lock of an
// interpreter that has ended no more.
//
// Thread rule: any thread.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "base/thread.h"

namespace tutti {

[[noreturn]] inline void stay_behind() noexcept {
  for (;;) ::pause();
}

// Within a function that asks for the lock: the unwinding of a thread that does not get it comes no further. Such a
// function is not noexcept, and not inlined into one that is, where compilers leave out what unwinding would run.
class UnwindingEndsHere {
 public:
  UnwindingEndsHere() = default;
  ~UnwindingEndsHere() {
    if (!has_lock_ && !on_library_thread()) stay_behind();
  }
  UnwindingEndsHere(const UnwindingEndsHere&) = delete;
  UnwindingEndsHere& operator=(const UnwindingEndsHere&) = delete;

  void has_lock() noexcept { has_lock_ = true; }

 private:
  bool has_lock_ = false;
};

// PyEval_RestoreThread().
[[gnu::noinline]] inline void restore_python(PyThreadState* state) {
  UnwindingEndsHere here;
  PyEval_RestoreThread(state);
  here.has_lock();
}

// PyGILState_Ensure().
[[gnu::noinline]] inline PyGILState_STATE ensure_python() {
  UnwindingEndsHere here;
  const PyGILState_STATE state = PyGILState_Ensure();
  here.has_lock();
  return state;
}

// The thread that ends the interpreter, once its exit handlers run, 0 before; and since when they do.
struct PythonsEnd {
  std::atomic<unsigned long> thread{0};
  std::int64_t since_ns = 0;  // written before `thread`
};
inline PythonsEnd& pythons_end() noexcept {
  static PythonsEnd end;
  return end;
}

// Around what may wait and is called by a binding that takes the lock afterwards in its own way, as torch's is: a
// thread of Python's whose interpreter ends meanwhile does not go back there. Nor while exit handlers run, when it
// might be asking for the lock at the moment after which nobody gets it: unless they take longer than kHeldBackNs, for
// they may wait for that thread.
class StaysBehind {
 public:
  StaysBehind() noexcept
      : python_(Py_IsInitialized() != 0 && PyGILState_GetThisThreadState() != nullptr && !on_library_thread()) {}
  ~StaysBehind() {
    if (!python_) return;
    // acquire: pairs with the release in python_ends(), for since_ns.
    const unsigned long ending = pythons_end().thread.load(std::memory_order_acquire);
    if (ending != 0 && ending != PyThread_get_thread_ident()) {
      const std::int64_t until = pythons_end().since_ns + kHeldBackNs;
      while (Py_IsInitialized() != 0 && now_ns() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (Py_IsInitialized() == 0) stay_behind();
  }
  StaysBehind(const StaysBehind&) = delete;
  StaysBehind& operator=(const StaysBehind&) = delete;

 private:
  static constexpr std::int64_t kHeldBackNs = 1'000'000'000;

  const bool python_;
};

// An exit handler of Python's, for modules whose calls have StaysBehind. Called without the lock, so that threads which
// have gone back to ask for it get it.
inline void python_ends() {
  constexpr std::chrono::milliseconds kUntilTheyHaveIt{10};
  pythons_end().since_ns = now_ns();
  pythons_end().thread.store(PyThread_get_thread_ident(), std::memory_order_release);  // release: see StaysBehind
  std::this_thread::sleep_for(kUntilTheyHaveIt);
}

}  // namespace tutti
