// The simulator of plans as tutti._core offers it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "plan/plan.h"
#include "plan/template/template.h"

namespace tutti {

using Simulated = std::variant<plan::Plan, plan::Template>;

// How long what `plan_of` makes takes. It and the simulation run without the interpreter.
nanobind::dict simulated_plan(const std::function<Simulated()>& plan_of, const std::string& topology_text,
                              std::int64_t block_bytes, std::optional<double> budget_s, bool timeline);

void bind_simulator(nanobind::module_& m);

}  // namespace tutti
