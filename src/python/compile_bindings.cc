#include "python/compile_bindings.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "algorithm/compiled/nvrtc.h"
#include "algorithm/compiled/plan_source.h"
#include "algorithm/plan/verdict_store.h"
#include "base/names.h"
#include "interpreter/without_python.h"
#include "python/signals.h"
#include "tutti/config.h"
#include "tutti/error.h"
#include "tutti/types.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

KernelText emit(const std::string& text, std::int32_t rank, std::size_t bytes, const std::string& dtype,
                const std::string& op, bool in_place, int most_cluster) {
  PlanSourceRequest request;
  request.rank = rank;
  request.bytes = bytes;
  request.dtype = from_name<DataType>(dtype, "element type", kDataTypeCount);
  request.op = from_name<ReduceOp>(op, "reduce operation", kReduceOpCount);
  request.in_place = in_place;
  if (most_cluster < 1)
    throw_error(ErrorKind::kInvalidArgument,
                "most_cluster=" + std::to_string(most_cluster) + ": a cluster has at least one block");
  request.most_cluster = most_cluster;
  return waiting([&] { return emit_plan(text, request, cache_folder(config_from_environment())); });
}

Nvrtc load(const std::string& nvrtc) {
  const Config config = config_from_environment();
  return Nvrtc::load(config.nvrtc.empty() ? nvrtc : config.nvrtc);
}

nb::dict nvrtc_info(const std::string& nvrtc) {
  const Nvrtc loaded = load(nvrtc);
  nb::dict out;
  out["path"] = loaded.path();
  out["version"] = loaded.version();
  return out;
}

nb::dict compile_source(const std::string& source, const std::string& architecture, const std::string& nvrtc) {
  CompiledSource made;
  std::string version;
  {
    const WithoutPython released;
    const Nvrtc loaded = load(nvrtc);
    version = loaded.version();
    made = loaded.compile(source, architecture);
  }
  nb::dict out;
  out["cubin"] = nb::bytes(made.cubin.data(), made.cubin.size());
  out["log"] = made.log;
  out["compiler"] = version;
  return out;
}

}  // namespace

void bind_plan_compiler(nb::module_& m) {
  m.def(
      "emit_plan",
      [](const std::string& text, std::int32_t rank, std::size_t bytes, const std::string& dtype, const std::string& op,
         bool in_place, int most_cluster) {
        const KernelText made = emit(text, rank, bytes, dtype, op, in_place, most_cluster);
        nb::dict out;
        out["source"] = made.text;
        out["threads"] = made.workers;
        out["cluster"] = made.cluster;
        return out;
      },
      "text"_a, "rank"_a, "bytes"_a, "dtype"_a = "f32", "op"_a = "sum", "in_place"_a = false, "most_cluster"_a = 1,
      "A rank's part of a plan as CUDA source. Raises NotImplementedError if GPUs cannot run it.");
  m.def("nvrtc_info", &nvrtc_info, "nvrtc"_a = "",
        "Path and version of the compiler. Raises NotImplementedError if there is none.");
  m.def("compile_cuda", &compile_source, "source"_a, "architecture"_a = "sm_90", "nvrtc"_a = "",
        "Compiles what emit_plan() has made. Raises NotImplementedError without a compiler, and if it refuses.");
}

}  // namespace tutti
