// The Python module tutti._core: what the package offers without torch.
//
// Errors become ValueError (kInvalidArgument), NotImplementedError (kUnsupported), TimeoutError (kTimeout) and
// RuntimeError. Thread rule: functions that wait release the interpreter.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <map>
#include <optional>
#include <string>

#include "base/collective_traits.h"
#include "base/names.h"
#include "base/process.h"
#include "bootstrap/launch.h"
#include "channel/host_segment.h"
#include "channel/rescued_waits.h"
#include "device/cpu/kernels.h"
#include "interpreter/without_python.h"
#include "python/algorithm_bindings.h"
#include "python/buffer_bindings.h"
#include "python/communicator_bindings.h"
#include "python/compile_bindings.h"
#include "python/device_bindings.h"
#include "python/plan_bindings.h"
#include "python/simulator_bindings.h"
#include "python/stepper_bindings.h"
#include "python/template_bindings.h"
#include "python/tuning_bindings.h"
#include "tools/explain.h"
#include "tools/probes.h"
#include "tutti/communicator.h"
#include "tutti/config.h"
#include "tutti/cuda/report.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

std::string explain_by_name(const std::string& collective, std::size_t bytes, int ranks, const std::string& dtype,
                            const std::string& op, bool mapped, const std::string& device) {
  SampleShape request;
  request.collective = from_name<Collective>(collective, "collective", kCollectiveCount);
  request.bytes = bytes;
  request.ranks = ranks;
  request.dtype = from_name<DataType>(dtype, "element type", kDataTypeCount);
  request.op = from_name<ReduceOp>(op, "reduce operation", kReduceOpCount);
  request.mapped = mapped;
  const WithoutPython released;
  return explain(request, device == "cuda");
}

std::map<std::string, bool> collective_traits(const std::string& collective) {
  const CollectiveTraits& traits = traits_of(from_name<Collective>(collective, "collective", kCollectiveCount));
  return {{"reduces", traits.reduces},
          {"has_root", traits.has_root},
          {"input_blocks", traits.input_blocks},
          {"output_blocks", traits.output_blocks}};
}

LaunchInfo launch_info_of(const std::optional<std::map<std::string, std::string>>& environment) {
  if (!environment) return launch_info(process_environment());
  return launch_info([&](const char* name) -> const char* {
    const auto found = environment->find(name);
    return found == environment->end() ? nullptr : found->second.c_str();
  });
}

void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyObject* type = PyExc_RuntimeError;
    if (error.kind() == ErrorKind::kInvalidArgument) type = PyExc_ValueError;
    if (error.kind() == ErrorKind::kUnsupported) type = PyExc_NotImplementedError;
    if (error.kind() == ErrorKind::kTimeout) type = PyExc_TimeoutError;
    // It may quote what is no UTF-8: values of variables, names of files.
    const std::string_view text = error.what();
    const nb::object shown =
        nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
    if (shown.is_valid()) PyErr_SetObject(type, shown.ptr());
  }
}

void bind_values(nb::module_& m) {
  nb::class_<ConfigVariable>(m, "ConfigVariable")
      .def_ro("name", &ConfigVariable::name)
      .def_ro("value", &ConfigVariable::value)
      .def_ro("help", &ConfigVariable::help);
  nb::class_<LaunchInfo>(m, "LaunchInfo")
      .def_ro("launcher", &LaunchInfo::launcher)
      .def_ro("rank", &LaunchInfo::rank)
      .def_ro("size", &LaunchInfo::size)
      .def_ro("local_rank", &LaunchInfo::local_rank);
  nb::class_<Probe>(m, "Probe")
      .def_ro("works", &Probe::works)
      .def_ro("detail", &Probe::detail)
      .def_ro("value", &Probe::value)
      .def_ro("unit", &Probe::unit);
  nb::class_<InterfaceProbe>(m, "InterfaceProbe")
      .def_ro("name", &InterfaceProbe::name)
      .def_ro("address", &InterfaceProbe::address)
      .def_ro("loopback", &InterfaceProbe::loopback)
      .def_ro("transfer", &InterfaceProbe::transfer);
}

nb::dict cuda_report_dict() {
  CudaReport report;
  {
    const WithoutPython released;
    report = cuda_report();
  }
  nb::list devices;
  for (const CudaDeviceReport& device : report.devices) {
    nb::list reach;
    for (const CudaReach to : device.reach) {
      reach.append(to == CudaReach::kNone ? "none" : to == CudaReach::kMapped ? "mapped" : "atomic");
    }
    nb::dict entry;
    entry["name"] = device.name;
    entry["capability"] = std::to_string(device.major) + "." + std::to_string(device.minor);
    entry["processors"] = device.processors;
    entry["memory_bytes"] = device.memory_bytes;
    entry["virtual_memory"] = device.virtual_memory;
    entry["posix_descriptors"] = device.posix_descriptors;
    entry["ipc"] = device.ipc;
    entry["multicast"] = device.multicast;
    entry["reach"] = reach;
    devices.append(entry);
  }
  nb::dict out;
  out["plugin_problem"] = report.plugin_problem;
  out["problem"] = report.problem;
  out["driver_version"] = report.driver_version;
  out["runtime_version"] = report.runtime_version;
  out["devices"] = devices;
  return out;
}

void bind_probes(nb::module_& m) {
  m.def(
      "usable_cores", [] { return usable_cores(); },
      "Cores this process may use: affinity bounded by the cgroup's quota.");
  m.def("simd_target", &cpu::target_name, "The instruction set that the arithmetic kernels run on.");
  m.def("probe_memfd", &probe_memfd, "Passes a memfd to another process, which writes into it.");
  m.def("probe_cross_memory", &probe_cross_memory, "A process reads the memory of another by the kernel.");
  m.def("probe_futex", &probe_futex, "Two processes wake each other through shared memory.");
  m.def("probe_membarrier", &probe_membarrier, "The asymmetric memory barrier.");
  m.def("probe_pidfd", &probe_pidfd, "Sees the death of another process.");
  m.def("probe_memory_lock", &probe_memory_lock, "Locks a page of memory.");
  m.def("probe_huge_pages", &probe_huge_pages, "Asks for a huge page of anonymous memory.");
  m.def("probe_shared_huge_pages", &probe_shared_huge_pages, "Asks for a huge page of shared memory.");
  m.def("probe_arena", &probe_arena, "Makes the arena of mapped tensors.");
  m.def("probe_descriptors", &probe_descriptors, "The limit of open files.");
  m.def("cuda_report", &cuda_report_dict, "What CUDA offers here. Initialises CUDA in this process.");
  m.def("try_cuda_group", &try_cuda_group, nb::call_guard<WithoutPython>(),
        "Makes a group over all GPUs, as threads; how its ranks reach each other.");
  m.def("probe_interfaces", &probe_interfaces, "Sends 16 MB through every network interface.");
}

}  // namespace

NB_MODULE(_core, m) {
  // A forked child ends without what the parent's other threads held: that is no leak to tell the user of.
  ::pthread_atfork(nullptr, nullptr, [] { nb::set_leak_warnings(false); });
  // While its threads may still run Python: a call that ends later would have the end of a tensor or an array wait for
  // an interpreter that is gone, which ends the process.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
    // What daemon threads hold is no leak either: they have it as long as there is a process.
    const nb::object threading = nb::module_::import_("sys").attr("modules").attr("get")("threading");
    if (!threading.is_none() && nb::cast<int>(threading.attr("active_count")()) > 1) nb::set_leak_warnings(false);
    const WithoutPython released;
    Communicator::finish_all(std::chrono::seconds(2));
  }));
  m.doc() = "The core of Tutti without torch: settings, checks of the machine, explanations.";
  nb::register_exception_translator(&translate);
  bind_values(m);
  bind_probes(m);
  bind_plans(m);
  bind_plan_compiler(m);
  bind_communicator(m);
  bind_algorithms(m);
  bind_buffers(m);
  bind_devices(m);
  bind_simulator(m);
  bind_templates(m);
  bind_stepper(m);
  bind_tuning(m);
  m.attr("__version__") = TUTTI_VERSION;
  m.attr("build_type") = TUTTI_BUILD_TYPE;
  m.attr("compiler") = TUTTI_COMPILER;
  m.attr("most_host_ranks") = kMaxHostRanks;
  m.def("rescued_waits", &rescued_waits_of_process, "Lost wake-ups of all groups that this process has or had.");
  m.def(
      "collectives", [] { return names_of<Collective>(kCollectiveCount); }, "Names of the collectives.");
  m.def("collective_traits", &collective_traits, nb::arg("collective"),
        "Whether it reduces and has a root, and whether its input and its output have a block for every rank.");
  m.def(
      "dtypes", [] { return names_of<DataType>(kDataTypeCount); }, "Short names of the element types.");
  m.def(
      "config", [] { return describe(config_from_environment()); }, "The settings in force.");
  m.def("launch_info", &launch_info_of, "environment"_a = nb::none(),
        "How this process was launched, from the environment or from a given one.");
  m.def("explain", &explain_by_name, "collective"_a, "bytes"_a, "ranks"_a = 2, "dtype"_a = "f32", "op"_a = "sum",
        "mapped"_a = false, "device"_a = "cpu", "Which algorithm a call takes, and why.");
}

}  // namespace tutti
