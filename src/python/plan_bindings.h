// What tutti._core offers on plans.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

#include "plan/plan.h"

namespace tutti {

// The verdict on the plan that `plan_of` makes. It and the proof run without the interpreter.
nanobind::dict checked_plan(const std::function<plan::Plan()>& plan_of, bool strict);

void bind_plans(nanobind::module_& m);

}  // namespace tutti
