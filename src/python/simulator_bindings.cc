// The simulator for Python: texts in, a plain dictionary out. It runs without the interpreter.
#include "python/simulator_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "interpreter/without_python.h"
#include "plan/operations.h"
#include "plan/reader.h"
#include "plan/simulator/steady.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

double us_of(plan::Picoseconds time) { return static_cast<double>(time) / plan::kPicosecondsPerUs; }

// The ranks of a template all come from its first.
const plan::Rank& rank_of(const Simulated& made, std::int32_t rank) {
  const auto* folded = std::get_if<plan::Template>(&made);
  return folded != nullptr ? folded->plan.ranks[0] : std::get<plan::Plan>(made).ranks[rank];
}

const std::string& origin_of(const Simulated& made, const plan::TimelineStep& step) {
  return plan::operation_at(rank_of(made, step.rank), step.block, step.op, step.inner).origin;
}

nb::dict step_dict(const Simulated& made, const plan::TimelineStep& step) {
  const std::string_view name = to_string(step.kind);
  nb::dict out;
  out["rank"] = step.rank;
  out["block"] = step.block;
  out["port"] = step.port;
  out["op"] = step.op;
  out["inner"] = step.inner;
  out["iteration"] = step.iteration;
  out["name"] = nb::str(name.data(), name.size());
  out["origin"] = origin_of(made, step);
  out["turn_us"] = us_of(step.turn);
  out["begin_us"] = us_of(step.begin);
  out["end_us"] = us_of(step.end);
  out["seen_us"] = us_of(step.seen);
  out["bytes"] = step.bytes;
  return out;
}

nb::dict simulate_plan(const std::string& plan_text, const std::string& topology_text, std::int64_t block_bytes,
                       std::optional<double> budget_s, bool timeline) {
  return simulated_plan([&plan_text] { return plan::read_plan_or_template(plan_text); }, topology_text, block_bytes,
                        budget_s, timeline);
}

}  // namespace

nb::dict simulated_plan(const std::function<Simulated()>& plan_of, const std::string& topology_text,
                        std::int64_t block_bytes, std::optional<double> budget_s, bool timeline) {
  Simulated made;
  plan::Topology topology;
  plan::Simulation run;
  {
    const WithoutPython released;
    made = plan_of();
    topology = plan::read_topology(topology_text);
    run = std::visit([&](const auto& plan) { return plan::simulate(plan, topology, block_bytes, budget_s); }, made);
  }
  const auto* folded = std::get_if<plan::Template>(&made);
  const plan::Plan& plan = folded != nullptr ? folded->plan : std::get<plan::Plan>(made);
  nb::dict out;
  out["plan"] = plan.name;
  out["collective"] = plan.collective_name;
  out["topology"] = topology.name;
  out["ranks"] = folded != nullptr ? static_cast<std::size_t>(folded->symmetry.ranks()) : plan.ranks.size();
  out["block_bytes"] = block_bytes;
  out["complete"] = run.complete;
  out["done"] = run.done;
  out["basis"] = run.basis;
  out["time_us"] = run.time_us;
  out["algorithm_gbs"] = run.algorithm_gbs;
  out["latency_bound_us"] = run.bounds.latency_us;
  out["bandwidth_bound_us"] = run.bounds.bandwidth_us;
  nb::list links;
  for (const plan::LinkUse& use : run.links) {
    nb::dict entry;
    entry["name"] = topology.links[use.link].name;
    entry["bytes"] = use.bytes;
    entry["share"] = use.share;
    links.append(entry);
  }
  out["links"] = links;
  nb::list path;
  for (const std::int32_t step : run.critical_path) path.append(step_dict(made, run.steps[step]));
  out["critical_path"] = path;
  nb::list steps;
  if (timeline) {
    for (const plan::TimelineStep& step : run.steps) steps.append(step_dict(made, step));
  }
  out["timeline"] = steps;
  return out;
}

void bind_simulator(nb::module_& m) {
  m.def("simulate_plan", &simulate_plan, "plan"_a, "topology"_a, "block_bytes"_a, "budget_s"_a = nb::none(),
        "timeline"_a = false,
        "How long a plan takes on a topology. Raises ValueError if it gets stuck or a text is wrong.");
}

}  // namespace tutti
