// Python's signal handlers run while a call of this backend waits.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "base/interruption.h"
#include "interpreter/signals.h"
#include "tutti/communicator.h"

namespace tutti::face {

// For Interruption. Takes the GIL.
inline constexpr auto run_python_handlers = &raised_by_handlers<pybind11::error_already_set>;

// `call()`, with Python's handlers run while it waits. What a handler raises aborts `group`, and is thrown as Python's
// own exception.
template <class Call>
decltype(auto) interruptible(Group& group, Call&& call) {
  return tutti::interruptible(
      run_python_handlers, [&group](const std::string& reason) { group.abort(reason); }, std::forward<Call>(call));
}

// The same before there is a group: the wait gives up by itself.
template <class Call>
decltype(auto) interruptible(Call&& call) {
  return tutti::interruptible(run_python_handlers, {}, std::forward<Call>(call));
}

}  // namespace tutti::face
