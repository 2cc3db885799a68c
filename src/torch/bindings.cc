// The Python module tutti._torch: the backend class, its creation, the arena's tensors.
//
// Everything that may wait or take long releases the GIL. Uses PyTorch's own pybind11, so that the class is a
// torch.distributed Backend to Python.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "aten/allocator.h"
#include "aten/errors.h"
#include "aten/signals.h"
#include "aten/tensors.h"
#include "base/collective_traits.h"
#include "base/names.h"
#include "communicator/metrics_dict.h"
#include "interpreter/left_behind.h"
#include "interpreter/with_python.h"
#include "interpreter/without_python.h"
#include "torch/process_group.h"
#include "torch/serving.h"
#include "tutti/config.h"
#include "tutti/cuda/communicator.h"

namespace py = pybind11;

namespace tutti::face {
namespace {

using Release = py::call_guard<WithoutPython>;
using Milliseconds = std::chrono::milliseconds;

std::string explain(const ProcessGroupTutti& group, const std::string& name, std::size_t count, at::ScalarType dtype) {
  Call call;
  call.collective = translated([&] { return from_name<Collective>(name, "collective", kCollectiveCount); });
  call.dtype = to_dtype(dtype);
  call.count = count;
  if (has_root(call.collective)) call.root = 0;
  const std::size_t bytes = count * at::elementSize(dtype);
  // Calls are checked for memory, input apart from output; none is touched.
  call.input = Blocks::single(reinterpret_cast<const std::byte*>(std::uintptr_t{1} << 40), bytes);
  call.output = Blocks::single(reinterpret_cast<const std::byte*>(std::uintptr_t{1} << 44), bytes);
  return translated([&] { return group.communicator().explain(call); });
}

void bind_options(py::module_& module) {
  py::class_<GroupOptions, c10d::Backend::Options, c10::intrusive_ptr<GroupOptions>>(
      module, "Options", "pg_options of init_process_group and new_group.")
      .def(py::init([](const std::string& algorithm, bool overlap_futures, Milliseconds timeout, int max_blocks) {
             if (max_blocks < 0 || max_blocks > 64) refuse("max_blocks must be 0 (chosen) to 64");
             auto options = c10::make_intrusive<GroupOptions>(timeout);
             options->algorithm = algorithm;
             options->overlap_futures = overlap_futures;
             options->max_blocks = max_blocks;
             return options;
           }),
           py::arg("algorithm") = "", py::arg("overlap_futures") = false, py::arg("timeout") = kBackendDefaultTimeout,
           py::arg("max_blocks") = 0)
      .def_readwrite("algorithm", &GroupOptions::algorithm)
      .def_readwrite("overlap_futures", &GroupOptions::overlap_futures)
      .def_readwrite("max_blocks", &GroupOptions::max_blocks)
      .def_readwrite("_refused", &GroupOptions::refused)
      .def("__copy__", [](const GroupOptions& self) { return c10::make_intrusive<GroupOptions>(self); })
      .def("__deepcopy__",
           [](const GroupOptions& self, const py::dict&) { return c10::make_intrusive<GroupOptions>(self); });
}

using GroupClass = py::class_<ProcessGroupTutti, c10d::Backend, c10::intrusive_ptr<ProcessGroupTutti>>;

// What describes and measures a group.
void bind_inspection(GroupClass& group) {
  group.def_property_readonly("group_name", [](const ProcessGroupTutti& self) { return self.communicator().name(); })
      .def_property_readonly("options", [](ProcessGroupTutti& self) { return self.getBackendOptions(); })
      .def_property_readonly("host_ranks",
                             [](const ProcessGroupTutti& self) { return self.communicator().host_ranks(); })
      .def_property_readonly("host_count",
                             [](const ProcessGroupTutti& self) { return self.communicator().host_count(); })
      .def_property_readonly("sequence", [](const ProcessGroupTutti& self) { return self.communicator().sequence(); })
      .def("metrics",
           [](const ProcessGroupTutti& self) {
             Metrics metrics;
             {
               const WithoutPython released;  // a GPU is asked, where there is one
               metrics = translated([&] { return self.metrics(); });
             }
             return to_dict<py::dict, py::list>(metrics);
           })
      .def("reset_metrics", &ProcessGroupTutti::reset_metrics)
      .def(
          "flight_record",
          [](const ProcessGroupTutti& self, const std::string& kind) {
            return translated([&] { return self.flight_record(kind); });
          },
          py::arg("kind") = "", Release())
      .def("explain", &explain, py::arg("collective"), py::arg("count"), py::arg("dtype") = at::kFloat)
      .def("failure",
           [](const ProcessGroupTutti& self) -> std::optional<std::string> {
             const auto failure = self.failure();
             if (!failure.has_value()) return std::nullopt;
             return std::string(failure->what());
           })
      .def("error_kind", [](ProcessGroupTutti& self) { return static_cast<int>(self.getError()); })
      .def_property_readonly("timeout", [](const ProcessGroupTutti& self) { return self.communicator().timeout(); });
}

// What Backend's own Python class has no method for.
void bind_life(GroupClass& group) {
  // A capsule of tutti._core.algorithm_set().
  group
      .def(
          "set_algorithms",
          [](ProcessGroupTutti& self, const py::capsule& capsule) {
            const char* const name = capsule.name();
            if (name == nullptr || std::string_view(name) != "tutti.AlgorithmSet") {
              throw py::type_error("set_algorithms takes what tutti._core.algorithm_set returns");
            }
            const AlgorithmSet set = *capsule.get_pointer<AlgorithmSet>();
            const WithoutPython released;
            self.set_algorithms(set);
          },
          py::arg("set"))
      .def("abort_because", &ProcessGroupTutti::abort_because, py::arg("reason"), Release())
      .def(
          "split_ranks",
          [](ProcessGroupTutti& self, const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
             const c10::intrusive_ptr<c10d::Backend::Options>& options) { return self.split(store, ranks, options); },
          py::arg("store"), py::arg("ranks"), py::arg("options") = c10::intrusive_ptr<c10d::Backend::Options>(),
          Release())
      .def("make_part", &ProcessGroupTutti::make_part, py::arg("store"), py::arg("ranks"), py::arg("name"),
           py::arg("options"), Release())
      .def("tell_want_of_part", &ProcessGroupTutti::tell_want_of_part, py::arg("ranks"), py::arg("name"), Release())
      .def(
          "merge_ranks",
          [](ProcessGroupTutti& self, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
             const c10::intrusive_ptr<c10d::Backend::Options>& options) {
            return self.merge(store, options, rank, size);
          },
          py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("options") = c10::intrusive_ptr<c10d::Backend::Options>(), Release())
      .def("shrink_to_survivors", &ProcessGroupTutti::shrink_to_survivors, py::arg("timeout"), Release());
}

// Calls that torch.distributed has no function for.
void bind_calls(GroupClass& group) {
  group.def(
      "all_reduce_into",
      [](ProcessGroupTutti& self, at::Tensor output, const at::Tensor& input, const c10d::ReduceOp& op) {
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        options.asyncOp = false;
        self.allreduce_into(output, input, options);
      },
      py::arg("output"), py::arg("input"), py::arg("op") = c10d::ReduceOp(c10d::ReduceOp::SUM), Release());
  group.def("all_reduce_add_rms_norm", &all_reduce_add_rms_norm, py::arg("input"), py::arg("residual"),
            py::arg("weight"), py::arg("epsilon"), py::arg("residual_output"), py::arg("output"),
            py::arg("scale") = std::nullopt, py::arg("row_scales") = std::nullopt, Release());
  group.def("all_reduce_quantized", &all_reduce_quantized, py::arg("output"), py::arg("input"), py::arg("bits"),
            py::arg("block"), Release());
}

// Memory that other processes can map, of the pool that PyTorch's own Python functions keep. Undefined where there is
// none, whatever the reason: the other ranks wait to hear of it.
at::Tensor pool_memory(std::int64_t bytes, c10::Device device) {
  const WithPython locked;
  try {
    const auto make = py::module_::import("tutti.dist.cuda_memory").attr("pool_memory");
    return make(bytes, static_cast<int>(device.index())).cast<at::Tensor>();
  } catch (const py::error_already_set&) {
    return {};
  }
}

void bind_cuda_memory(py::module_& module, GroupClass& group) {
  using Self = ProcessGroupTutti;
  using Tensors = std::vector<at::Tensor>;
  const auto add = [](Self& self, const Tensors& tensors) { return self.cuda().register_tensors(tensors); };
  const auto remove = [](Self& self, const Tensors& tensors) { self.cuda().unregister_tensors(tensors); };
  const auto has = [](Self& self, const at::Tensor& tensor) { return self.cuda().is_registered(tensor); };
  group.def("register_tensors", add, py::arg("tensors"), Release())
      .def("unregister_tensors", remove, py::arg("tensors"), Release())
      .def("is_registered", has, py::arg("tensor"))
      .def(
          "peer_tensors", [](Self& self, const at::Tensor& tensor) { return self.cuda().peer_tensors(tensor); },
          py::arg("tensor"))
      .def_property_readonly("cuda_direct_calls", [](Self& self) { return self.cuda().direct_calls(); })
      .def(
          "allocate_tensor",
          [](Self& self, long size, at::ScalarType dtype, const at::Device& device) {
            return self.allocate_with(size, at::TensorOptions(dtype).device(device), &pool_memory);
          },
          py::arg("size"), py::kw_only(), py::arg("dtype"), py::arg("device"), Release());
  module.def("cuda_library", [] { return translated([] { return CudaCommunicator::library(); }); });
}

void bind_arena(py::module_& module) {
  module.def(
      "empty",
      [](const std::vector<int64_t>& sizes, at::ScalarType dtype) {
        return translated([&] { return empty_in_arena(sizes, dtype); });
      },
      py::arg("sizes"), py::arg("dtype"), Release());
  module.def(
      "use_shared_allocator",
      [](bool enabled, std::optional<std::size_t> threshold) {
        translated([&] {
          use_shared_allocator(enabled, threshold.value_or(config_from_environment().shared_threshold_bytes));
        });
      },
      py::arg("enabled"), py::arg("threshold"));
  module.def("shared_allocator_enabled", &shared_allocator_enabled);
  module.def("shared_allocator_wanted",
             [] { return translated([] { return config_from_environment().shared_allocator; }); });
  module.def("is_mapped", [](const at::Tensor& tensor) {
    return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
           is_mapped(tensor.storage().data(), tensor.storage().nbytes());
  });
  module.def("arena_stats", [] {
    const ArenaStats stats = arena_stats();
    py::dict result;
    result["bytes"] = stats.bytes;
    result["in_use"] = stats.in_use;
    result["cached"] = stats.cached;
    result["quarantined"] = stats.quarantined;
    return result;
  });
}

}  // namespace
}  // namespace tutti::face

PYBIND11_MODULE(_torch, module) {
  using namespace tutti::face;
  py::module_::import("torch.distributed");
  module.doc() = "Tutti's torch.distributed backend.";
  hear_of_pythons_end();
  bind_options(module);
  GroupClass group(module, "ProcessGroupTutti", "A torch.distributed Backend over a tutti communicator.");
  group.def(py::init<const c10::intrusive_ptr<c10d::Store>&, int, int, const std::string&,
                     const c10::intrusive_ptr<GroupOptions>&>(),
            py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("id"), py::arg("options"), Release());
  bind_inspection(group);
  bind_life(group);
  bind_calls(group);
  bind_cuda_memory(module, group);
  bind_arena(module);
}
