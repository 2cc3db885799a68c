// Python's signal handlers run while a call of the core's module waits.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "base/interruption.h"
#include "interpreter/signals.h"
#include "interpreter/without_python.h"
#include "tutti/communicator.h"

namespace tutti {

// `call()`, without the GIL, with Python's handlers run while it waits. What a handler raises aborts `group`, and is
// thrown as Python's own exception.
template <class Call>
decltype(auto) waiting(Group& group, Call&& call) {
  const WithoutPython released;
  return interruptible(
      &raised_by_handlers<nanobind::python_error>, [&group](const std::string& reason) { group.abort(reason); },
      std::forward<Call>(call));
}

// The same before there is a group: the wait gives up by itself.
template <class Call>
decltype(auto) waiting(Call&& call) {
  const WithoutPython released;
  return interruptible(&raised_by_handlers<nanobind::python_error>, {}, std::forward<Call>(call));
}

}  // namespace tutti
