#include "python/tuning_bindings.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "algorithm/tuning/table.h"
#include "algorithm/tuning/tuned.h"
#include "base/machine.h"
#include "base/names.h"
#include "interpreter/without_python.h"
#include "python/communicator_bindings.h"
#include "tools/tuning_rank.h"
#include "tutti/cuda/communicator.h"
#include "tutti/user_algorithm.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

nb::dict machine() {
  const Machine here = this_machine();
  nb::dict out;
  out["cpu"] = here.cpu;
  out["cores"] = here.cores;
  out["last_cache_bytes"] = here.last_cache_bytes;
  return out;
}

// Where `tutti tune` writes, and where groups look, if nothing else is said.
std::string default_tuning_file() {
  const Config config = config_from_environment();
  return config.user_config.empty() ? std::string() : tuning_file(config.user_config);
}

std::vector<std::string> algorithm_names(const std::string& collective, const std::string& device) {
  const auto called = from_name<Collective>(collective, "collective", kCollectiveCount);
  return device == "cuda" ? CudaCommunicator::algorithms(called) : library_algorithm_names(called);
}

using Candidates = std::vector<std::pair<std::string, std::string>>;

nb::dict measure(TuningRank& rank, const std::string& collective, const std::string& dtype, std::size_t bytes,
                 bool mapped, const Candidates& candidates, double seconds) {
  SampleShape shape;
  shape.collective = from_name<Collective>(collective, "collective", kCollectiveCount);
  shape.dtype = from_name<DataType>(dtype, "element type", kDataTypeCount);
  shape.bytes = bytes;
  shape.mapped = mapped;
  std::vector<TuningCandidate> list;
  for (const auto& [algorithm, plan_path] : candidates) list.push_back({algorithm, plan_path});
  TuningResult result;
  {
    const WithoutPython released;
    result = rank.measure(shape, list, seconds);
  }
  nb::dict out, times, refused;
  for (const CandidateResult& candidate : result.candidates) {
    if (candidate.ns >= 0) {
      times[candidate.algorithm.c_str()] = candidate.ns;
    } else {
      refused[candidate.algorithm.c_str()] = candidate.reason;
    }
  }
  out["default"] = result.by_default;
  out["choice"] = result.choice;
  out["ns"] = times;
  out["refused"] = refused;
  return out;
}

}  // namespace

void bind_tuning(nb::module_& m) {
  m.def("machine", &machine, "What a tuning table holds for: cpu, cores, last_cache_bytes.");
  m.def("default_tuning_file", &default_tuning_file,
        "This machine's table in the user's folder; empty without a home.");
  m.def("library_algorithm_names", &algorithm_names, "collective"_a, "device"_a = "cpu",
        "The library's own, in the order of preference; of a call on GPUs (cuda) those that a table can choose.");
  m.def(
      "check_tuning_table", [](const std::string& text) { read_tuning_table(text); }, "text"_a,
      "Raises ValueError, naming the place, if the text is no tuning table.");
  m.def("best_candidate", &best_candidate, "times_ns"_a, "by_default"_a,
        "Which algorithm to take, given each one's times by round.");
  nb::class_<TuningRank>(m, "TuningRank")
      .def(
          "__init__",
          [](TuningRank* self, nb::object store, int rank, int size, const std::string& device) {
            auto shared = python_store(std::move(store));
            const WithoutPython released;
            new (self) TuningRank(std::move(shared), rank, size, device);
          },
          "store"_a, "rank"_a, "size"_a, "device"_a = "cpu")
      .def("crowded", &TuningRank::crowded)
      .def("gpus", &TuningRank::gpus)
      .def("measure", &measure, "collective"_a, "dtype"_a, "bytes"_a, "mapped"_a, "candidates"_a, "seconds"_a)
      .def("forget_plans", &TuningRank::forget_plans, nb::call_guard<WithoutPython>());
}

}  // namespace tutti
