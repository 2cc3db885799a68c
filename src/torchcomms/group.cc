#include "torchcomms/group.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"
#include "interpreter/with_python.h"
#include "interpreter/without_python.h"

namespace py = pybind11;

namespace tutti::torchcomms {
namespace {

// Without one, a store that is to connect tries again until its time is over, while the others wait for this rank.
bool has_descriptor() noexcept {
  const UniqueFd taken(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  return taken || (errno != EMFILE && errno != ENFILE);
}

// A connection of its own where the store has any: a thread that waits holds one, and what it waits for may be said by
// another thread that makes a communicator. Called with Python's lock, which it gives back while it connects.
StorePtr connection(const StorePtr& store) {
  const WithoutPython released;
  try {
    if (!has_descriptor()) return store;  // then the forming says so to all
    if (auto clone = store->clone()) return clone;
  } catch (const std::exception&) {
    // A store of the user's own need not have it.
  }
  return store;
}

// Runs `call`, which uses Python. What that raises becomes c10::Error, but for an interruption by the user.
template <class Call>
auto through_python(const char* what, Call&& call) {
  const WithPython locked;
  std::string reason;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt, SystemExit
    reason = error.what();
  }
  C10_THROW_ERROR(DistBackendError, std::string("tutti: ") + what + ": " + reason);
}

}  // namespace

MadeGroup make_group(const GroupRequest& request) {
  return through_python("the communicator could not be made", [&]() -> MadeGroup {
    const py::object store = request.store == nullptr ? py::object(py::none()) : py::cast(connection(request.store));
    const py::object made =
        py::module_::import("tutti.dist.torchcomms")
            .attr("make_group")(store, request.rank, request.size, request.key, request.timeout, request.hints,
                                request.anew,
                                request.parent == nullptr ? py::object(py::none()) : py::cast(request.parent),
                                request.ranks, request.refused);
    const auto pair = made.cast<py::tuple>();
    return {pair[0].cast<Group>(), pair[1].cast<StorePtr>()};
  });
}

std::vector<at::Tensor> registered_by_all(const Group& group, const at::Tensor& tensor) {
  return through_python("tensor_register", [&]() -> std::vector<at::Tensor> {
    const py::object made = py::cast(group);
    const std::vector<at::Tensor> tensors{tensor};
    if (!made.attr("register_tensors")(tensors).cast<std::string>().empty()) return {};
    return made.attr("peer_tensors")(tensor).cast<std::vector<at::Tensor>>();
  });
}

void unregistered_by_all(const Group& group, const at::Tensor& tensor) {
  through_python("tensor_deregister", [&] {
    const std::vector<at::Tensor> tensors{tensor};
    py::cast(group).attr("unregister_tensors")(tensors);
  });
}

std::shared_ptr<c10::Allocator> cuda_allocator() {
  return through_python("get_mem_allocator", [] {
    const py::object made = py::module_::import("tutti.dist.cuda_memory").attr("pool_allocator")();
    // torch binds it as its CUDAAllocator, which is declared in headers of CUDA's; those derive from c10::Allocator and
    // from nothing else, so it is at the same address.
    py::detail::type_caster_generic caster(py::detail::get_type_info(Py_TYPE(made.ptr())));
    TORCH_CHECK(caster.load(made, /*convert=*/false), "torch's allocator is of an unknown kind");
    made.inc_ref();  // pools and tensors may outlive the interpreter
    return std::shared_ptr<c10::Allocator>(std::shared_ptr<void>(), static_cast<c10::Allocator*>(caster.value));
  });
}

}  // namespace tutti::torchcomms
