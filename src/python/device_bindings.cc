#include "python/device_bindings.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "base/names.h"
#include "communicator/metrics_dict.h"
#include "interpreter/without_python.h"
#include "python/algorithm_bindings.h"
#include "python/call_ends.h"
#include "python/communicator_bindings.h"
#include "python/signals.h"
#include "tutti/device_communicator.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {

std::chrono::milliseconds milliseconds_of(double seconds) {
  if (!(seconds >= 0)) throw_error(ErrorKind::kInvalidArgument, "a timeout is a number of seconds, not negative");
  constexpr double kMost = 1e12;  // thirty years
  // Rounded up: what was asked for is no 0, which has a meaning of its own.
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(std::min(seconds * 1000, kMost))));
}

namespace {

// An array on a GPU, and what keeps its memory.
struct DeviceArray {
  CallEnd end;
  int device = -1;     // -1: its owner does not say
  nb::ndarray<> held;  // what keeps the memory: this,
  nb::object owner;    // or an object
};

// Of a DLPack capsule. `which`: the argument, for errors; `written`: also where memory may only be read.
DeviceArray from_capsule(nb::object capsule, const std::string& which, bool written) {
  const auto taken = [&](const auto& array) -> DeviceArray {
    return {end_of(array, which.c_str(), "its .contiguous()"), array.device_id(), nb::ndarray<>(array), {}};
  };
  capsule = with_strides(capsule);  // should it be none
  if (written) {
    if (nb::ndarray<nb::device::cuda> array; nb::try_cast(capsule, array, false)) return taken(array);
  } else {
    if (nb::ndarray<nb::ro, nb::device::cuda> array; nb::try_cast(capsule, array, false)) return taken(array);
  }
  PyErr_Clear();  // of what was tried
  throw_error(ErrorKind::kInvalidArgument,
              "the " + which +
                  (written ? " cannot be written as an array on a GPU: it is read-only, or none"
                           : " cannot be read as an array on a GPU"));
}

DeviceArray from_address(std::uintptr_t address, std::size_t count, const std::string& dtype, int device,
                         nb::object owner) {
  return {{reinterpret_cast<void*>(address), count, from_name<DataType>(dtype, "element type", kDataTypeCount)},
          device,
          {},
          std::move(owner)};
}

std::optional<CallEnd> end_of(const DeviceArray* array) {
  return array != nullptr ? std::optional(array->end) : std::nullopt;
}

using Address = std::optional<std::uintptr_t>;

DevicePlace place_of(int device, Address stream, double timeout) {
  DevicePlace place;
  place.device = device;
  if (stream) place.stream = reinterpret_cast<DeviceStream>(*stream);
  place.timeout = milliseconds_of(timeout);
  return place;
}

int device_of(const DeviceArray* a, const DeviceArray* b) {
  const int first = a != nullptr ? a->device : -1, second = b != nullptr ? b->device : -1;
  if (first >= 0 && second >= 0 && first != second) {
    throw_error(ErrorKind::kInvalidArgument,
                "the input is on device " + std::to_string(first) + ", the output on device " + std::to_string(second));
  }
  return std::max(first, second);
}

void run_arrays(DeviceCommunicator& devices, int size, const std::string& name, const DeviceArray* input,
                const DeviceArray* output, const std::string& op, int root, double timeout, Address stream) {
  const auto collective = from_name<Collective>(name, "collective", kCollectiveCount);
  const Call call = make_call(collective, size, end_of(input), end_of(output),
                              from_name<ReduceOp>(op, "reduce operation", kOpsWithoutFactor), root);
  const DevicePlace place = place_of(device_of(input, output), stream, timeout);
  waiting(devices, [&] { devices.run(call, place); });
}

void send_array(DeviceCommunicator& devices, const DeviceArray& array, int peer, std::uint64_t tag, double timeout,
                Address stream) {
  const DevicePlace place = place_of(array.device, stream, timeout);
  const std::size_t bytes = array.end.count * size_of(array.end.dtype);
  waiting(devices, [&] { devices.send(array.end.data, bytes, peer, tag, place); });
}

void recv_array(DeviceCommunicator& devices, const DeviceArray& array, int peer, std::uint64_t tag, double timeout,
                Address stream) {
  const DevicePlace place = place_of(array.device, stream, timeout);
  const std::size_t bytes = array.end.count * size_of(array.end.dtype);
  waiting(devices, [&] { devices.recv(array.end.data, bytes, peer, tag, place); });
}

std::shared_ptr<DeviceCommunicator> create_device(Communicator& communicator) {
  auto made = DeviceCommunicator::create("cuda", communicator);
  DeviceCommunicator* const devices = made.get();
  // Their end waits for kernels and for threads, which may wait for Python's.
  return {devices, [made](DeviceCommunicator*) mutable {
            const WithoutPython released;
            made.reset();
          }};
}

}  // namespace

void bind_devices(nb::module_& m) {
  nb::class_<DeviceArray>(m, "DeviceArray")
      .def_static("from_dlpack", &from_capsule, "capsule"_a, "which"_a, "written"_a)
      .def_static("from_address", &from_address, "address"_a, "count"_a, "dtype"_a, "device"_a, "owner"_a)
      .def_prop_ro("address", [](const DeviceArray& a) { return reinterpret_cast<std::uintptr_t>(a.end.data); })
      .def_prop_ro("nbytes", [](const DeviceArray& a) { return a.end.count * size_of(a.end.dtype); })
      .def_prop_ro("dtype", [](const DeviceArray& a) { return std::string(to_string(a.end.dtype)); })
      .def_ro("device", &DeviceArray::device);
  nb::class_<DeviceCommunicator>(m, "DeviceCommunicator")
      .def(
          "own_stream",
          [](DeviceCommunicator& d, int device) {
            return waiting(d, [&] { return reinterpret_cast<std::uintptr_t>(d.own_stream(device)); });
          },
          "device"_a)
      .def(
          "message_stream",
          [](DeviceCommunicator& d, int device, int peer, bool send) {
            return waiting(d, [&] { return reinterpret_cast<std::uintptr_t>(d.message_stream(device, peer, send)); });
          },
          "device"_a, "peer"_a, "send"_a)
      .def("run", &run_arrays, "size"_a, "collective"_a, "input"_a.none(), "output"_a.none(), "op"_a, "root"_a,
           "timeout"_a, "stream"_a.none())
      .def("send", &send_array, "array"_a, "peer"_a, "tag"_a, "timeout"_a, "stream"_a.none())
      .def("recv", &recv_array, "array"_a, "peer"_a, "tag"_a, "timeout"_a, "stream"_a.none())
      .def(
          "run_by",
          [](DeviceCommunicator& d, int size, const std::shared_ptr<UserAlgorithm>& algorithm,
             std::pair<std::uintptr_t, std::size_t> input, std::pair<std::uintptr_t, std::size_t> output,
             const std::string& dtype, const std::optional<std::string>& op, int root, double timeout, int device,
             Address stream, int blocks, int threads) {
            Call call = named_call(size, *algorithm, input, output, dtype, op, root);
            const AlgorithmChoice choice{algorithm, {}, blocks, threads};
            call.choice = &choice;
            const DevicePlace place = place_of(device, stream, timeout);
            waiting(d, [&] { d.run(call, place); });
          },
          "size"_a, "algorithm"_a, "input"_a, "output"_a, "dtype"_a, "op"_a.none(), "root"_a, "timeout"_a, "device"_a,
          "stream"_a.none(), "blocks"_a = 0, "threads"_a = 0)
      .def(
          "set_algorithms",
          [](DeviceCommunicator& d, const std::vector<std::shared_ptr<UserAlgorithm>>& algorithms,
             nb::object selector) {
            AlgorithmSet set = algorithm_set(algorithms, std::move(selector));
            waiting(d, [&] { d.set_algorithms(std::move(set)); });
          },
          "algorithms"_a, "selector"_a.none())
      .def(
          "synchronize",
          [](DeviceCommunicator& d, int device, std::uintptr_t stream) {
            waiting(d, [&] { d.synchronize(device, reinterpret_cast<DeviceStream>(stream)); });
          },
          "device"_a, "stream"_a)
      .def(
          "metrics",
          [](const DeviceCommunicator& d, const Communicator& host) {
            Metrics metrics;
            {
              const WithoutPython released;  // a GPU is asked
              metrics = merged_metrics(host, d);
            }
            return to_dict<nb::dict, nb::list>(metrics);
          },
          "host"_a)
      .def(
          "flight_record",
          [](const DeviceCommunicator& d, const Communicator& host, const std::string& kind) {
            const WithoutPython released;
            return merged_record(host, d, kind);
          },
          "host"_a, "kind"_a)
      .def(
          "reset_metrics", [](DeviceCommunicator& d) { d.reset_metrics(); }, nb::call_guard<WithoutPython>())
      .def(
          "abort", [](DeviceCommunicator& d, const std::string& reason) { d.abort(reason); }, "reason"_a,
          nb::call_guard<WithoutPython>())
      .def("shutdown", &DeviceCommunicator::shutdown, nb::call_guard<WithoutPython>());
  m.def("device_communicator", &create_device, "communicator"_a);
  m.def(
      "device_of", [](std::uintptr_t address) { return device_of("cuda", reinterpret_cast<const void*>(address)); },
      "address"_a);
}

}  // namespace tutti
