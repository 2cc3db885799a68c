// Python's signal handlers run while a call of this backend waits.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/interruption.h"
#include "interpreter/left_behind.h"
#include "interpreter/signals.h"
#include "interpreter/without_python.h"
#include "tutti/communicator.h"

namespace tutti::face {

// For Interruption. Takes the GIL.
inline constexpr auto run_python_handlers = &raised_by_handlers<pybind11::error_already_set>;

// Once a module, when it is loaded, with Python's lock: for the threads that StaysBehind is about.
inline void hear_of_pythons_end() {
  pybind11::module_::import("atexit").attr("register")(pybind11::cpp_function([] {
    if (pybind11::module_::import("threading").attr("active_count")().cast<int>() == 1) return;
    const WithoutPython released;
    python_ends();
  }));
}

// `call()`, with Python's handlers run while it waits. What a handler raises is given to `abort`, and is thrown as
// Python's own exception. PyTorch's binding takes Python's lock when this has returned: where the interpreter has ended
// meanwhile, it does not.
template <class Call>
decltype(auto) interruptible_by(Interruption::Abort abort, Call&& call) {
  const StaysBehind stays;
  return tutti::interruptible(run_python_handlers, std::move(abort), std::forward<Call>(call));
}

// The same: what a handler raises aborts `group`.
template <class Call>
decltype(auto) interruptible(Group& group, Call&& call) {
  return interruptible_by([&group](const std::string& reason) { group.abort(reason); }, std::forward<Call>(call));
}

// The same before there is a group: the wait gives up by itself.
template <class Call>
decltype(auto) interruptible(Call&& call) {
  return interruptible_by({}, std::forward<Call>(call));
}

// Within either: looks at what a GPU does until it is `over()`. False once `deadline` has come.
template <class Over>
bool over_in_time(const Over& over, Deadline& deadline, const std::string& who) {
  while (!over()) {
    throw_if_interrupted(who);
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

}  // namespace tutti::face
