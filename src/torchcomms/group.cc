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

std::shared_ptr<c10::Allocator> cuda_allocator() {
  const py::gil_scoped_acquire locked;
  std::string reason;
  try {
    const py::object made = py::module_::import("tutti._cuda_memory").attr("pool_allocator")();
    // torch binds it as its CUDAAllocator, which is declared in headers of CUDA's; those derive from c10::Allocator and
    // from nothing else, so it is at the same address.
    py::detail::type_caster_generic caster(py::detail::get_type_info(Py_TYPE(made.ptr())));
    TORCH_CHECK(caster.load(made, /*convert=*/false), "torch's allocator is of an unknown kind");
    made.inc_ref();  // pools and tensors may outlive the interpreter
    return {std::shared_ptr<void>(), static_cast<c10::Allocator*>(caster.value)};
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, SystemExit
    reason = error.what();
  }
  C10_THROW_ERROR(Error, "tutti: get_mem_allocator: " + reason);
}

}  // namespace tutti::torchcomms
