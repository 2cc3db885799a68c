#include "torchcomms/group.h"

#include <c10/util/Exception.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace tutti::torchcomms {
namespace {

// A connection of its own where the store has any: a thread that waits holds one, and what it waits for may be said by
// another thread that makes a communicator.
StorePtr connection(const StorePtr& store) {
  try {
    if (auto clone = store->clone()) return clone;
  } catch (const std::exception&) {
    // A store of the user's own need not have it.
  }
  return store;
}

}  // namespace

MadeGroup make_group(const GroupPlan& plan) {
  const py::gil_scoped_acquire locked;
  std::string reason;
  try {
    const py::object store = plan.store == nullptr ? py::object(py::none()) : py::cast(connection(plan.store));
    const py::object made =
        py::module_::import("tutti._torchcomms")
            .attr("make_group")(store, plan.rank, plan.size, plan.key, plan.timeout, plan.hints, plan.anew,
                                plan.parent == nullptr ? py::object(py::none()) : py::cast(plan.parent), plan.ranks);
    const auto pair = made.cast<py::tuple>();
    return {pair[0].cast<Group>(), pair[1].cast<StorePtr>()};
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, SystemExit
    reason = error.what();
  }
  C10_THROW_ERROR(DistBackendError, "tutti: the communicator could not be made: " + reason);
}

}  // namespace tutti::torchcomms
