#include "communicator/cuda/tuned_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tutti/error.h"

namespace tutti::cuda {
namespace {

constexpr std::string_view kPlanPrefix = "plan:";

// Null, or why the step does not serve the call.
const char* refusal_of(const TunedStep& step, const CallShape& shape, const CudaShape& on_gpu) noexcept {
  if (step.plan != nullptr) return refusal_on_gpu(*step.plan, shape);
  return refusal(on_gpu, step.kernel.protocol, step.kernel.two_shot);
}

std::optional<TunedStep> step_named(const std::string& name, const TuningRule& rule,
                                    const std::vector<const TablePlan*>& plans) {
  if (name.starts_with(kPlanPrefix)) {
    const auto found = std::find_if(plans.begin(), plans.end(), [&](const TablePlan* plan) {
      return plan->name == name && plan->collective == rule.collective;
    });
    return found != plans.end() ? std::optional(TunedStep{{}, *found}) : std::nullopt;
  }
  try {
    const std::optional<ForcedChoice> kernel = parse_forced(name);
    // Copy engines serve memory that all ranks map, which is measured nowhere.
    return kernel && !kernel->copy_engine ? std::optional(TunedStep{*kernel, nullptr}) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

TunedCalls::TunedCalls(std::vector<TuningRule> rules, const std::vector<const TablePlan*>& plans) {
  for (TuningRule& rule : rules) {
    std::vector<TunedStep> order;
    for (const TuningRule::Measured& measured : rule.measured) {
      if (const auto step = step_named(measured.algorithm, rule, plans)) order.push_back(*step);
    }
    rules_.add(std::move(rule), std::move(order));
  }
}

const TunedRules<TunedStep>::Rule* TunedCalls::rule_for(const CallShape& shape) const noexcept {
  if (shape.uneven) return nullptr;
  return rules_.find(shape.collective, shape.dtype, false, shape.bytes);
}

const TunedStep* TunedCalls::step_for(const CallShape& shape, const CudaShape& on_gpu) const noexcept {
  const auto* const rule = rule_for(shape);
  if (rule == nullptr) return nullptr;
  for (const TunedStep& step : rule->order) {
    if (refusal_of(step, shape, on_gpu) == nullptr) return &step;
  }
  return nullptr;
}

std::string TunedCalls::explain(const CallShape& shape, const CudaShape& on_gpu, const TunedStep& taken) const {
  const auto* const rule = rule_for(shape);
  if (rule == nullptr) return {};
  const Choice kernel = choose(on_gpu, taken.kernel);
  const std::string name(taken.plan != nullptr ? std::string_view(taken.plan->name) : name_of(kernel));
  const std::int64_t taken_ns = measured_ns(rule->said, name);
  std::string text = "-> ";
  text += taken.plan != nullptr ? name + ": runs the plan of " + taken.plan->path
                                : to_string(kernel) + ": Tutti's own kernels";
  text += ", by the tuning table; " + time_text(taken_ns) + '\n';
  std::vector<const TablePlan*> plans;
  for (const TunedStep& step : rule->order) {
    if (step.plan != nullptr) plans.push_back(step.plan);
  }
  for (const TuningRule::Measured& measured : rule->said.measured) {
    if (measured.algorithm == name) continue;
    const auto step = step_named(measured.algorithm, rule->said, plans);
    text += "   " + measured.algorithm + ": ";
    if (!step) {
      text += "measured, but chosen nowhere";
    } else if (const char* reason = refusal_of(*step, shape, on_gpu)) {
      text += std::string("not here: ") + reason;
    } else {
      text += taken_ns > measured.ns ? "would work; measured, but not faster by enough" : "would work; slower";
    }
    text += "; " + time_text(measured.ns) + '\n';
  }
  return text + source_of_times(rule->said) + '\n';
}

}  // namespace tutti::cuda
