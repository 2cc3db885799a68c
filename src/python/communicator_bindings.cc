#include "python/communicator_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/collective_traits.h"
#include "base/interruption.h"
#include "bootstrap/exchange.h"
#include "bootstrap/launch.h"
#include "bootstrap/look.h"
#include "bootstrap/tcp_store.h"
#include "python/names.h"
#include "python/signals.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using WrittenArray = nb::ndarray<nb::device::cpu>;
using Milliseconds = std::chrono::milliseconds;

Milliseconds milliseconds_of(double seconds) {
  if (!(seconds >= 0)) throw_error(ErrorKind::kInvalidArgument, "a timeout is a number of seconds, not negative");
  constexpr double kMost = 1e12;  // thirty years
  // Rounded up: what was asked for is no 0, which has a meaning of its own.
  return Milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds * 1000, kMost))));
}

// A group's own, for which 0 has no meaning.
Milliseconds group_timeout_of(double seconds) {
  if (seconds == 0) throw_error(ErrorKind::kInvalidArgument, "the timeout of a group must be more than 0 seconds");
  return milliseconds_of(seconds);
}

class PythonStore final : public Store {
 public:
  explicit PythonStore(nb::object store) : store_(std::move(store)) {}
  ~PythonStore() override {
    const nb::gil_scoped_acquire held;
    store_.reset();
  }
  void set(std::string_view key, std::string_view value) override {
    const nb::gil_scoped_acquire held;
    store_.attr("set")(text(key), nb::bytes(value.data(), value.size()));
  }
  std::string get(std::string_view key, Milliseconds timeout) override {
    const nb::gil_scoped_acquire held;
    const nb::object limit = nb::module_::import_("datetime").attr("timedelta")("milliseconds"_a = timeout.count());
    if (must_ask() && nb::hasattr(store_, "check")) await(key, timeout);
    try {
      store_.attr("wait")(nb::make_tuple(text(key)), limit);
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt and its like: no error of the store
      throw_error(ErrorKind::kTimeout, "the store has no " + std::string(key) + ": " + error.what());
    }
    const auto value = nb::cast<nb::bytes>(store_.attr("get")(text(key)));
    return {value.c_str(), value.size()};
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    const nb::gil_scoped_acquire held;
    return nb::cast<std::int64_t>(store_.attr("add")(text(key), amount));
  }
  void erase(std::string_view key) noexcept override {
    const nb::gil_scoped_acquire held;
    try {
      store_.attr("delete_key")(text(key));
    } catch (const std::exception&) {
      return;  // a store need not forget
    }
  }

 private:
  static nb::str text(std::string_view key) { return nb::str(key.data(), key.size()); }

  // Until the key is there or the time is up: PyTorch's wait() lets no handler of a signal run.
  void await(std::string_view key, Milliseconds timeout) {
    nb::list keys;
    keys.append(text(key));
    const nb::gil_scoped_release released;
    const auto there = [&] {
      const nb::gil_scoped_acquire held;
      return nb::cast<bool>(store_.attr("check")(keys));
    };
    look_for(
        there, [&] { throw_if_interrupted("waiting for the store to give '" + std::string(key) + "'"); }, timeout);
  }

  nb::object store_;
};

// Argument `which` as it is, never a converted copy. None is no array. Throws Error(kInvalidArgument) saying what the
// argument is and what to pass instead; `written`: also where its memory is read-only.
std::optional<Array> array_of(nb::handle object, const char* which, bool written) {
  if (object.is_none()) return std::nullopt;
  if (written) {
    if (WrittenArray array; nb::try_cast(object, array, false)) return Array(array);
  } else {
    if (Array array; nb::try_cast(object, array, false)) return array;
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

DataType dtype_of(const Array& array) {
  struct Row {
    nb::dlpack::dtype_code code;
    int bits;
    DataType dtype;
  };
  using Code = nb::dlpack::dtype_code;
  static constexpr Row kRows[] = {{Code::Bool, 8, DataType::kBool},           {Code::UInt, 8, DataType::kUint8},
                                  {Code::UInt, 16, DataType::kUint16},        {Code::UInt, 32, DataType::kUint32},
                                  {Code::UInt, 64, DataType::kUint64},        {Code::Int, 8, DataType::kInt8},
                                  {Code::Int, 16, DataType::kInt16},          {Code::Int, 32, DataType::kInt32},
                                  {Code::Int, 64, DataType::kInt64},          {Code::Float, 16, DataType::kFloat16},
                                  {Code::Float, 32, DataType::kFloat32},      {Code::Float, 64, DataType::kFloat64},
                                  {Code::Bfloat, 16, DataType::kBfloat16},    {Code::Complex, 64, DataType::kComplex64},
                                  {Code::Complex, 128, DataType::kComplex128}};
  const nb::dlpack::dtype type = array.dtype();
  for (const Row& row : kRows) {
    if (static_cast<std::uint8_t>(row.code) == type.code && row.bits == type.bits && type.lanes == 1) return row.dtype;
  }
  throw_error(ErrorKind::kUnsupported, "this element type (DLPack code " + std::to_string(type.code) + ", " +
                                           std::to_string(type.bits) + " bits) is not supported");
}

void require_contiguous(const Array& array, const char* which) {
  std::int64_t step = 1;
  for (std::size_t d = array.ndim(); d-- > 0;) {
    if (array.shape(d) != 1 && array.size() != 0 && array.stride(d) != step) {
      throw_error(ErrorKind::kInvalidArgument,
                  std::string("the ") + which + " is not contiguous: pass numpy.ascontiguousarray(it)");
    }
    step *= static_cast<std::int64_t>(array.shape(d));
  }
}

// One end of a call: `blocks` equal blocks in an array. An array that this rank does not need may be absent.
Blocks blocks_of(const std::optional<Array>& array, const char* which, std::size_t blocks, DataType dtype,
                 std::size_t& count) {
  if (!array) return {};
  require_contiguous(*array, which);
  if (dtype_of(*array) != dtype) throw_error(ErrorKind::kInvalidArgument, "input and output differ in element type");
  if (array->size() % blocks != 0) {
    throw_error(ErrorKind::kInvalidArgument, std::string("the ") + which + " has " + std::to_string(array->size()) +
                                                 " elements, which are no " + std::to_string(blocks) + " equal blocks");
  }
  const std::size_t here = array->size() / blocks;
  if (count != 0 && here != count) {
    throw_error(ErrorKind::kInvalidArgument, "input and output disagree: a block of " + std::to_string(count) +
                                                 " elements against one of " + std::to_string(here));
  }
  count = here;
  return Blocks::single(array->data(), here * size_of(dtype));
}

Call make_call(const Communicator& comm, Collective collective, const std::optional<Array>& input,
               const std::optional<Array>& output, ReduceOp op, int root) {
  Call call;
  call.collective = collective;
  call.root = root;
  if (collective == Collective::kBarrier) return call;
  if (!input && !output) throw_error(ErrorKind::kInvalidArgument, "this rank needs an input or an output");
  call.op = op;
  call.dtype = dtype_of(input ? *input : *output);
  const auto n = static_cast<std::size_t>(comm.size());
  call.input = blocks_of(input, "input", traits_of(collective).input_blocks ? n : 1, call.dtype, call.count);
  call.output = blocks_of(output, "output", traits_of(collective).output_blocks ? n : 1, call.dtype, call.count);
  // What a rank does not pass it neither reads nor writes; its blocks still have the size of the call.
  if (!input) call.input.bytes = call.output.bytes;
  if (!output) call.output.bytes = call.input.bytes;
  return call;
}

// PREMUL_SUM, the last, needs a factor, which nothing here gives.
constexpr int kOpsWithoutFactor = static_cast<int>(ReduceOp::kPremulSum);

void run(Communicator& comm, const std::string& name, nb::handle input_object, nb::handle output_object,
         const std::string& op, int root, double timeout) {
  const auto collective = from_name<Collective>(name, "collective", kCollectiveCount);
  const bool in_place = input_object.is(output_object);
  const bool written = writes_output(collective, root, comm.rank());
  const char* const what = collective == Collective::kBroadcast ? "array" : "input";
  const std::optional<Array> input = array_of(input_object, what, in_place && written);
  const std::optional<Array> output = in_place ? input : array_of(output_object, "output", written);
  const Call call =
      make_call(comm, collective, input, output, from_name<ReduceOp>(op, "reduce operation", kOpsWithoutFactor), root);
  const Milliseconds limit = milliseconds_of(timeout);
  waiting(comm, [&] { comm.run(call, limit); });
}

void send(Communicator& comm, nb::handle object, int peer, std::uint64_t tag, double timeout) {
  const Array array = required_array(object, "message", false);
  require_contiguous(array, "message");
  const DataType dtype = dtype_of(array);
  const Milliseconds limit = milliseconds_of(timeout);
  waiting(comm, [&] { comm.send(array.data(), array.size(), dtype, peer, tag, limit); });
}

int recv(Communicator& comm, nb::handle object, int peer, std::uint64_t tag, double timeout) {
  const Array array = required_array(object, "message", true);
  require_contiguous(array, "message");
  const DataType dtype = dtype_of(array);
  const Milliseconds limit = milliseconds_of(timeout);
  void* data = const_cast<void*>(array.data());
  return waiting(comm, [&] { return comm.recv(data, array.size(), dtype, peer, tag, limit); });
}

CommunicatorOptions options_of(const std::string& name, double timeout) {
  CommunicatorOptions options;
  options.config = config_from_environment();
  options.timeout = group_timeout_of(timeout);
  options.name = name;
  return options;
}

// A communicator and the store that it was formed over: its rank 0 may serve the store, which others still read when
// rank 0 has all that it needs.
struct Member {
  std::shared_ptr<Store> store;
  std::shared_ptr<Communicator> communicator;
};

std::shared_ptr<Communicator> create(std::shared_ptr<Store> store, int rank, int size, const std::string& name,
                                     double timeout) {
  auto member = std::make_shared<Member>();
  member->communicator = waiting([&] {
    const auto options = telling(*store, name, rank, [&] { return options_of(name, timeout); });
    return Communicator::create(*store, name, rank, size, options);
  });
  member->store = std::move(store);
  Communicator* communicator = member->communicator.get();
  return {std::move(member), communicator};
}

std::shared_ptr<Store> environment_store(int rank, int size, double timeout) {
  const Milliseconds limit = milliseconds_of(timeout);
  return waiting([&] { return store_from_environment(rank, size, limit); });
}

nb::dict metrics(const Communicator& comm) {
  const Metrics all = comm.metrics();
  nb::list rows;
  for (const MetricsRow& row : all.rows) {
    nb::dict out;
    out["device"] = row.device;
    out["collective"] = row.collective;
    out["size_class"] = row.size_class;
    out["algorithm"] = row.algorithm;
    out["calls"] = row.calls;
    out["bytes"] = row.bytes;
    out["timed_calls"] = row.timed_calls;
    out["total_ns"] = row.total_ns;
    out["wait_ns"] = row.wait_ns;
    out["p50_ns"] = row.p50_ns;
    rows.append(out);
  }
  nb::dict out;
  out["rows"] = rows;
  out["mapped_calls"] = all.mapped_calls;
  out["errors"] = all.errors;
  out["rescued_waits"] = all.rescued_waits;
  out["device_calls"] = all.device_calls;
  return out;
}

// The store at an address that the caller names, which the rank that serves it makes. Port 0 takes any free one there.
std::shared_ptr<TcpStore> tcp_store(const std::string& host, std::uint16_t port, bool serve, double timeout) {
  TcpStoreOptions options;
  options.host = host;
  options.port = port;
  options.serve = serve;
  options.secret = config_from_environment().secret;
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
      .def("run", &run, "collective"_a, "input"_a.none(), "output"_a.none(), "op"_a = "sum", "root"_a = -1,
           "timeout"_a = 0.0)
      .def("send", &send, "array"_a.none(), "peer"_a, "tag"_a = 0, "timeout"_a = 0.0)
      .def("recv", &recv, "array"_a.none(), "peer"_a, "tag"_a = 0, "timeout"_a = 0.0)
      .def("flight_record", &Communicator::flight_record)
      .def("metrics", &metrics)
      .def("reset_metrics", &Communicator::reset_metrics)
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
}

}  // namespace tutti
