#include "python/communicator_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/interruption.h"
#include "base/names.h"
#include "bootstrap/exchange.h"
#include "bootstrap/launch.h"
#include "bootstrap/look.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/tcp_store.h"
#include "interpreter/with_python.h"
#include "interpreter/without_python.h"
#include "python/call_ends.h"
#include "python/device_bindings.h"
#include "python/signals.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/error.h"
#include "tutti/group_id.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using WrittenArray = nb::ndarray<nb::device::cpu>;
using Milliseconds = std::chrono::milliseconds;

class PythonStore final : public Store {
 public:
  explicit PythonStore(nb::object store) : store_(std::move(store)) {}
  ~PythonStore() override { let_go_with_python(store_.release().ptr()); }
  void set(std::string_view key, std::string_view value) override {
    const WithPython held;
    store_.attr("set")(text(key), nb::bytes(value.data(), value.size()));
  }
  std::string get(std::string_view key, Milliseconds timeout) override {
    const WithPython held;
    // PyTorch's clients say of each wait that times out that something may be wrong, and let no signal's handler run.
    if (!nb::hasattr(store_, "check")) {
      wait(key, timeout);
    } else if (!await(key, timeout)) {
      throw_error(ErrorKind::kTimeout, "the store has no " + std::string(key));
    }
    const nb::object value = store_.attr("get")(text(key));
    if (PyObject_CheckBuffer(value.ptr()) == 0) throw_wrong("get", key, "bytes", value);
    const auto bytes = nb::steal<nb::bytes>(PyBytes_FromObject(value.ptr()));
    if (!bytes.is_valid()) nb::raise_python_error();
    return {bytes.c_str(), bytes.size()};
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const WithPython held;
    const nb::object sum = store_.attr("add")(text(key), amount);
    std::int64_t number = 0;
    if (!nb::try_cast(sum, number)) throw_wrong("add", key, "an int", sum);
    return number;
  }
  void erase(std::string_view key) noexcept override {
    try {
      const WithPython held;
      store_.attr("delete_key")(text(key));
    } catch (const std::exception&) {
      return;  // a store need not forget
    }
  }

 private:
  static nb::str text(std::string_view key) { return nb::str(key.data(), key.size()); }

  [[noreturn]] static void throw_wrong(const char* method, std::string_view key, const char* wanted,
                                       const nb::object& given) {
    throw_error(ErrorKind::kInvalidArgument, std::string("the store's ") + method + "('" + std::string(key) +
                                                 "') gives " + nb::type_name(given.type()).c_str() + ", not " + wanted +
                                                 ": a store gives what torch's gives");
  }

  void wait(std::string_view key, Milliseconds timeout) {
    Deadline deadline = Deadline::after(timeout);
    deadline.remaining_ns();  // the clock starts here
    const std::int64_t limit_ms = std::max<std::int64_t>(1, timeout.count());
    const nb::object limit = nb::module_::import_("datetime").attr("timedelta")("milliseconds"_a = limit_ms);
    try {
      store_.attr("wait")(nb::make_tuple(text(key)), limit);
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt and its like: no error of the store
      // Every store raises what it likes when time is up: what comes much earlier is something else.
      constexpr std::int64_t kShortMs = 100;
      if (limit_ms > kShortMs && deadline.remaining_ns() > limit_ms * 1'000'000 / 2) throw;
      throw_error(ErrorKind::kTimeout, "the store has no " + std::string(key) + ": " + error.what());
    }
  }

  // Whether the key is there before the time is up.
  bool await(std::string_view key, Milliseconds timeout) {
    nb::list keys;
    keys.append(text(key));
    const WithoutPython released;
    const auto there = [&] {
      const WithPython held;
      const int yes = PyObject_IsTrue(store_.attr("check")(keys).ptr());
      if (yes < 0) nb::raise_python_error();
      return yes == 1;
    };
    return look_for(
        there, [&] { throw_if_interrupted("waiting for the store to give '" + std::string(key) + "'"); }, timeout);
  }

  nb::object store_;
};

bool says_yes(nb::handle object, const char* question) {
  const nb::object answer = nb::getattr(object, question, nb::none());
  return PyObject_IsTrue((PyCallable_Check(answer.ptr()) != 0 ? answer() : answer).ptr()) == 1;
}

// Of a tensor of PyTorch's, which is taken from it without being asked: its memory holds other values than it has (to
// be conjugated or negated when it is read), or is to be written behind the back of its gradients.
bool misleads(nb::handle object, bool written) {
  if (PyObject_CheckBuffer(object.ptr()) != 0) return false;  // NumPy's
  return says_yes(object, "is_conj") || says_yes(object, "is_neg") || (written && says_yes(object, "requires_grad"));
}

// Argument `which` as it is, never a converted copy. None is no array. Throws Error(kInvalidArgument) saying what the
// argument is and what to pass instead; `written`: also where its memory is read-only.
std::optional<Array> array_of(nb::handle object, const char* which, bool written) {
  if (object.is_none()) return std::nullopt;
  if (!misleads(object, written)) {
    const nb::object readable = with_strides(object);
    if (written) {
      if (WrittenArray array; nb::try_cast(readable, array, false)) return Array(array);
    } else {
      if (Array array; nb::try_cast(readable, array, false)) return array;
    }
  }
  PyErr_Clear();  // of what was tried
  const nb::object why = nb::module_::import_("tutti._arrays").attr("refusal")(object, which, written);
  throw_error(ErrorKind::kInvalidArgument, nb::cast<std::string>(why));
}

Array required_array(nb::handle object, const char* which, bool written) {
  std::optional<Array> array = array_of(object, which, written);
  if (!array) throw_error(ErrorKind::kInvalidArgument, std::string("the ") + which + " is None: pass an array");
  return *std::move(array);
}

std::optional<CallEnd> contiguous(const std::optional<Array>& array, const char* which) {
  if (!array) return std::nullopt;
  return end_of(*array, which, "numpy.ascontiguousarray(it)");
}

// Whether this rank's output is written; else it may lie in memory that cannot be.
bool writes_output(Collective collective, int root, int rank) {
  switch (collective) {
    case Collective::kReduce:
    case Collective::kGather:
      return rank == root;
    case Collective::kBroadcast:
      return rank != root;
    default:
      return true;
  }
}

void run(Communicator& comm, const std::string& name, nb::handle input_object, nb::handle output_object,
         const std::string& op, int root, double timeout) {
  const auto collective = from_name<Collective>(name, "collective", kCollectiveCount);
  const bool in_place = input_object.is(output_object);
  const bool written = writes_output(collective, root, comm.rank());
  const char* const what = collective == Collective::kBroadcast ? "array" : "input";
  const std::optional<Array> input = array_of(input_object, what, in_place && written);
  const std::optional<Array> output = in_place ? input : array_of(output_object, "output", written);
  const Call call = make_call(collective, comm.size(), contiguous(input, what), contiguous(output, "output"),
                              from_name<ReduceOp>(op, "reduce operation", kOpsWithoutFactor), root);
  const Milliseconds limit = milliseconds_of(timeout);
  waiting(comm, [&] { comm.run(call, limit); });
}

void send(Communicator& comm, nb::handle object, int peer, std::uint64_t tag, double timeout) {
  const Array array = required_array(object, "message", false);
  const CallEnd message = *contiguous(array, "message");
  const Milliseconds limit = milliseconds_of(timeout);
  waiting(comm, [&] { comm.send(message.data, message.count, message.dtype, peer, tag, limit); });
}

int recv(Communicator& comm, nb::handle object, int peer, std::uint64_t tag, double timeout) {
  const Array array = required_array(object, "message", true);
  const CallEnd message = *contiguous(array, "message");
  const Milliseconds limit = milliseconds_of(timeout);
  return waiting(comm, [&] { return comm.recv(message.data, message.count, message.dtype, peer, tag, limit); });
}

CommunicatorOptions options_of(const std::string& name, double timeout) {
  CommunicatorOptions options;
  options.config = config_from_environment();
  options.timeout = milliseconds_of(timeout);
  options.name = name;
  return options;
}

// A communicator and the store that it was formed over: its rank 0 may serve the store, which others still read when
// rank 0 has all that it needs.
struct Member {
  std::shared_ptr<Store> store;
  std::shared_ptr<Communicator> communicator;
};

std::shared_ptr<Communicator> member_of(std::shared_ptr<Store> store, std::shared_ptr<Communicator> communicator) {
  Communicator* const here = communicator.get();
  return {std::make_shared<Member>(Member{std::move(store), std::move(communicator)}), here};
}

std::shared_ptr<Communicator> create(std::shared_ptr<Store> store, int rank, int size, const std::string& name,
                                     double timeout) {
  constexpr Milliseconds kOthersHear{1200};  // who waits in a store looks twice a second for what has been told
  auto communicator = waiting([&] {
    try {
      const auto options = telling(*store, name, rank, [&] { return options_of(name, timeout); });
      return Communicator::create(*store, name, rank, size, options);
    } catch (...) {
      if (const auto* own = dynamic_cast<const TcpStore*>(store.get())) own->await_others(kOthersHear);
      throw;
    }
  });
  return member_of(std::move(store), std::move(communicator));
}

// Tells the others of the group `name` why `rank` will not join it: this one, which had not even the memory to begin,
// or another, which knows nothing of the group.
void tell_cannot_join(nb::object store, const char* name, int rank, const char* why) {
  std::shared_ptr<Store> place;
  if (!nb::try_cast(store, place)) place = python_store(std::move(store));
  const WithoutPython released;
  give_reason(*place, name, rank, why);
}

nb::bytes make_id(const std::string& address) {
  const GroupId id = waiting([&] { return make_group_id(config_from_environment(), address); });
  return nb::bytes(id.data(), id.size());
}

GroupId id_of(const nb::bytes& bytes) {
  GroupId id{};  // of another length it is none
  if (bytes.size() == id.size()) std::memcpy(id.data(), bytes.c_str(), id.size());
  return id;
}

std::shared_ptr<Communicator> join(const nb::bytes& id, int rank, int size, const std::string& name, double timeout) {
  const GroupId given = id_of(id);
  return waiting([&] { return join_group(given, rank, size, [&] { return options_of(name, timeout); }); });
}

std::shared_ptr<Communicator> split(Communicator& parent, int color, int key, const std::string& name) {
  return waiting(parent, [&] { return split_group(parent, color, key, name); });
}

// The new group, and its old ranks.
using Shrunk = std::pair<std::shared_ptr<Communicator>, std::vector<int>>;

Shrunk shrink_in_store(Communicator& group, std::shared_ptr<Store> store, const std::string& id, double timeout) {
  Shrunk shrunk;
  const Milliseconds limit = milliseconds_of(timeout);
  auto smaller = waiting(group, [&] { return group.shrink(*store, id, limit, &shrunk.second); });
  shrunk.first = member_of(std::move(store), std::move(smaller));
  return shrunk;
}

Shrunk shrink_by_id(Communicator& group, const nb::bytes& id, double timeout) {
  Shrunk shrunk;
  const GroupId given = id_of(id);
  const Milliseconds limit = milliseconds_of(timeout);
  shrunk.first = waiting(group, [&] { return shrink_group(group, given, limit, &shrunk.second); });
  return shrunk;
}

std::shared_ptr<Store> environment_store(int rank, int size, double timeout) {
  const Milliseconds limit = milliseconds_of(timeout);
  return waiting([&] { return store_from_environment(rank, size, limit); });
}

// The store at an address that the caller names, which the rank that serves it makes. Port 0 takes any free one there.
std::shared_ptr<TcpStore> tcp_store(const std::string& host, std::uint16_t port, bool serve, double timeout) {
  TcpStoreOptions options;
  options.host = host;
  options.port = port;
  options.serve = serve;
  const Config config = config_from_environment();
  options.secret = config.secret;
  options.logger = Logger(parse_log_level(config.log_level), 0);  // whoever serves it is called rank 0
  options.timeout = milliseconds_of(timeout);
  return waiting([&] { return std::make_shared<TcpStore>(options); });
}

}  // namespace

std::shared_ptr<Store> python_store(nb::object store) { return std::make_shared<PythonStore>(std::move(store)); }

void bind_communicator(nb::module_& m) {
  nb::class_<Communicator>(m, "Communicator")
      .def_prop_ro("rank", [](const Communicator& c) { return c.rank(); })
      .def_prop_ro("size", [](const Communicator& c) { return c.size(); })
      .def_prop_ro("name", [](const Communicator& c) { return c.name(); })
      .def_prop_ro("host_ranks", [](const Communicator& c) { return c.host_ranks(); })
      .def_prop_ro("host_count", [](const Communicator& c) { return c.host_count(); })
      .def_prop_ro("sequence", [](const Communicator& c) { return c.sequence(); })
      .def_prop_ro("splits", [](const Communicator& c) { return splits_of(c); })
      .def("run", &run, "collective"_a, "input"_a.none(), "output"_a.none(), "op"_a = "sum", "root"_a = -1,
           "timeout"_a = 0.0)
      .def("send", &send, "array"_a.none(), "peer"_a, "tag"_a = 0, "timeout"_a = 0.0)
      .def("recv", &recv, "array"_a.none(), "peer"_a, "tag"_a = 0, "timeout"_a = 0.0)
      .def("flight_record", [](const Communicator& c) { return c.flight_record(); })
      .def("reset_metrics", [](Communicator& c) { c.reset_metrics(); })
      .def(
          "abort", [](Communicator& c, const std::string& reason) { c.abort(reason); }, "reason"_a)
      .def("shutdown", [](Communicator& c) { waiting(c, [&] { c.shutdown(); }); });
  nb::class_<Store>(m, "Store");
  nb::class_<TcpStore, Store>(m, "TcpStore").def_prop_ro("port", &TcpStore::port);
  m.def("tcp_store", &tcp_store, "host"_a, "port"_a, "serve"_a, "timeout"_a);
  m.def("environment_store", &environment_store, "rank"_a, "size"_a, "timeout"_a);
  m.def("create_communicator", &create, "store"_a, "rank"_a, "size"_a, "name"_a, "timeout"_a);
  m.def(
      "create_communicator",
      [](nb::object store, int rank, int size, const std::string& name, double timeout) {
        return create(python_store(std::move(store)), rank, size, name, timeout);
      },
      "store"_a, "rank"_a, "size"_a, "name"_a, "timeout"_a);
  m.def("tell_cannot_join", &tell_cannot_join, "store"_a, "name"_a, "rank"_a, "why"_a);
  m.def("memory_store", [] { return std::shared_ptr<Store>(std::make_shared<MemoryStore>()); });
  m.def("make_id", &make_id, "address"_a = "");
  m.def("join_group", &join, "id"_a, "rank"_a, "size"_a, "name"_a, "timeout"_a);
  m.def("split_group", &split, "parent"_a, "color"_a, "key"_a, "name"_a);
  m.def("shrink_group", &shrink_by_id, "group"_a, "id"_a, "timeout"_a);
  m.def("shrink_group", &shrink_in_store, "group"_a, "store"_a, "id"_a, "timeout"_a);
  m.def(
      "shrink_group",
      [](Communicator& group, nb::object store, const std::string& id, double timeout) {
        return shrink_in_store(group, python_store(std::move(store)), id, timeout);
      },
      "group"_a, "store"_a, "id"_a, "timeout"_a);
}

}  // namespace tutti
