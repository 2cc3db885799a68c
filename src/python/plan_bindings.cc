// Plans for Python: text in, plain dictionaries out. Reading and proving run without the interpreter, but for
// handlers of signals.
#include "python/plan_bindings.h"

#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/names.h"
#include "communicator/plan_trial.h"
#include "executor/cpu/trial.h"
#include "interpreter/without_python.h"
#include "plan/operations.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "python/signals.h"
#include "tutti/types.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

nb::object optional_text(const std::string& text) {
  return text.empty() ? nb::object(nb::none()) : nb::str(text.c_str());
}

nb::str text_of(std::string_view text) { return nb::str(text.data(), text.size()); }

nb::dict site_dict(const plan::Site& site) {
  nb::dict out;
  out["rank"] = site.rank;
  out["block"] = site.block;
  out["op"] = site.op;
  out["inner"] = site.inner;
  out["iteration"] = site.iteration;
  out["call"] = site.invocation;
  out["name"] = site.name;
  out["origin"] = optional_text(site.origin);
  return out;
}

nb::dict verdict_dict(const plan::Verdict& verdict, std::string repaired_text) {
  nb::dict out;
  out["outcome"] = text_of(to_string(verdict.outcome));
  out["calls"] = verdict.invocations;
  out["same_bits"] = verdict.same_bits;
  if (verdict.fault.kind == plan::FaultKind::kNone) {
    out["fault"] = nb::none();
  } else {
    nb::dict fault;
    fault["kind"] = text_of(to_string(verdict.fault.kind));
    fault["message"] = verdict.fault.message;
    nb::list sites;
    for (const plan::Site& site : verdict.fault.sites) sites.append(site_dict(site));
    fault["sites"] = sites;
    out["fault"] = fault;
  }
  out["checked"] = verdict.checked;
  nb::list repairs;
  for (const plan::Repair& repair : verdict.repairs) {
    nb::dict entry;
    entry["kind"] = text_of(to_string(repair.kind));
    entry["rank"] = repair.rank;
    entry["block"] = repair.block;
    entry["op"] = repair.op;
    entry["inner"] = repair.inner;
    entry["channel"] = repair.channel;
    entry["bytes"] = repair.bytes;
    entry["text"] = plan::describe(repair);
    repairs.append(entry);
  }
  out["repairs"] = repairs;
  out["repaired"] = optional_text(repaired_text);
  return out;
}

nb::dict check_plan(const std::string& text, bool strict) {
  return checked_plan([&text] { return plan::read_plan(text); }, strict);
}

nb::dict block_dict(const plan::ThreadBlock& block) {
  std::map<std::string, int> counts;
  for (const plan::Operation& op : block.operations) {
    ++counts[std::string(to_string(op.kind))];
    for (const plan::Operation& inner : op.body) ++counts[std::string(to_string(inner.kind))];
  }
  nb::dict out;
  for (const auto& [name, count] : counts) out[name.c_str()] = count;
  return out;
}

nb::dict rank_dict(const plan::Rank& rank) {
  nb::dict out;
  out["input_chunks"] = rank.chunks_of(plan::BufferKind::kInput);
  out["output_chunks"] = rank.chunks_of(plan::BufferKind::kOutput);
  out["scratch_chunks"] = rank.chunks_of(plan::BufferKind::kScratch);
  out["memory_channels"] = rank.channels_of(plan::ChannelKind::kMemory).size();
  out["port_channels"] = rank.channels_of(plan::ChannelKind::kPort).size();
  out["switch_channels"] = rank.switch_channels.size();
  out["semaphores"] = rank.semaphores.size();
  nb::list blocks;
  for (const plan::ThreadBlock& block : rank.blocks) blocks.append(block_dict(block));
  out["blocks"] = blocks;
  return out;
}

nb::dict plan_info(const std::string& text) {
  plan::Plan plan;
  {
    const WithoutPython released;
    plan = plan::read_plan(text);
  }
  nb::dict out;
  out["version"] = plan.version;
  out["name"] = plan.name;
  out["collective"] = plan.collective_name;
  out["protocol"] = text_of(to_string(plan.protocol));
  out["in_place"] = plan.in_place;
  out["reuse_resources"] = plan.reuse_resources;
  out["double_scratch"] = plan.double_scratch;
  out["writes_input"] = plan.writes_input;
  out["reduce"] = plan.reduce ? nb::object(text_of(to_string(*plan.reduce))) : nb::object(nb::none());
  out["root"] = plan.root;
  out["threads_per_block"] = plan.threads_per_block;
  out["min_message_bytes"] = plan.min_message_bytes;
  out["max_message_bytes"] = plan.max_message_bytes;
  out["source"] = optional_text(plan.source);
  nb::list ranks;
  for (const plan::Rank& rank : plan.ranks) ranks.append(rank_dict(rank));
  out["ranks"] = ranks;
  return out;
}

std::string export_mscclpp(const std::string& text) {
  const WithoutPython released;
  return plan::export_mscclpp(plan::read_plan(text));
}

// How a trial is to be run, and by what names.
nb::dict run_plan(const std::string& text, std::int64_t bytes, const std::string& dtype, const std::string& op,
                  bool threads, int invocations, const nb::object& seed, std::int64_t timeout_ms,
                  const std::string& device) {
  executor::TrialRequest request;
  request.block_bytes = bytes;
  request.dtype = from_name<DataType>(dtype, "element type", kDataTypeCount);
  request.op = from_name<ReduceOp>(op, "reduce operation", kReduceOpCount);
  request.rounds = 3;  // the two halves of double scratch, and the first again
  request.options.thread_per_rank = threads;
  request.options.invocations = invocations;
  request.options.timeout = std::chrono::milliseconds(timeout_ms);
  if (!seed.is_none()) request.options.seed = nb::cast<std::uint64_t>(seed);
  const executor::TrialReport report = waiting([&] {
    return device == "cuda" ? try_plan_on_gpus(text, request)
                            : executor::try_plan(std::make_shared<const plan::Plan>(plan::read_plan(text)), request);
  });
  nb::dict out;
  out["checked"] = report.checked;
  out["fault"] = optional_text(report.fault);
  nb::list nanoseconds;
  for (const std::int64_t time : report.nanoseconds) nanoseconds.append(time);
  out["nanoseconds"] = nanoseconds;
  return out;
}

nb::dict plan_on_gpu(const std::string& text, int blocks) {
  DeviceFit fit;
  {
    const WithoutPython released;
    fit = fit_on_gpu(std::make_shared<const plan::Plan>(plan::read_plan(text)), blocks);
  }
  nb::dict out;
  out["refused"] = optional_text(fit.refused);
  out["blocks"] = fit.blocks;
  out["threads"] = fit.threads;
  out["segment_bytes"] = fit.segment_bytes;
  out["memory_bytes"] = fit.memory_bytes;
  out["records"] = fit.records;
  return out;
}

}  // namespace

nb::dict checked_plan(const std::function<plan::Plan()>& plan_of, bool strict) {
  plan::Verdict verdict;
  std::string repaired_text;
  waiting([&] {
    const plan::Plan plan = plan_of();
    verdict = strict ? plan::verify_strictly(plan) : plan::verify(plan);
    if (!verdict.repairs.empty()) repaired_text = plan::write_plan(plan::repaired(plan, verdict.repairs));
  });
  return verdict_dict(verdict, std::move(repaired_text));
}

void bind_plans(nb::module_& m) {
  m.def("check_plan", &check_plan, "text"_a, "strict"_a = false,
        "Proves a plan, or says what is wrong. Raises ValueError if the text is no plan.");
  m.def("plan_info", &plan_info, "text"_a, "What a plan consists of.");
  m.def("run_plan", &run_plan, "text"_a, "bytes"_a, "dtype"_a = "f32", "op"_a = "sum", "threads"_a = false,
        "invocations"_a = 1, "seed"_a = nb::none(), "timeout_ms"_a = 10'000, "device"_a = "cpu",
        "Runs all ranks of a plan in this process and checks what comes of it.");
  m.def("plan_on_gpu", &plan_on_gpu, "text"_a, "blocks"_a,
        "What a plan needs on GPUs whose kernels have so many thread blocks at once, or why they cannot run it.");
  m.def("export_mscclpp", &export_mscclpp, "text"_a,
        "A plan as MSCCL++'s executor takes it. Raises NotImplementedError past that executor's limits.");
}

}  // namespace tutti
