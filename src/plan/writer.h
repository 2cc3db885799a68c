// Plans to JSON text.
//
// read_plan(write_plan(p)) == p for every plan that passes check_structure.
#pragma once

#include <string>

#include "plan/plan.h"
#include "plan/template/template.h"

namespace tutti::plan {

// `indent` < 0 writes one line.
std::string write_plan(const Plan& plan, int indent = 2);

// read_plan_or_template reads it back.
std::string write_template(const Template& folded, int indent = 2);

// For MSCCL++'s executor: without the keys that Tutti adds. Throws Unsupported, with the JSON path, if the plan is past
// that executor's limits or holds what it lacks. Operations with reduction "any" become "sum", the only one it has.
std::string export_mscclpp(const Plan& plan, int indent = 2);

}  // namespace tutti::plan
