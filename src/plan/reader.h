// Plans from JSON text: MSCCL++'s format and what Tutti adds to it (docs/plan-format.md).
//
// Trusts nothing. Every error is tutti::Error of kind InvalidArgument that begins with the JSON path of the fault,
// "plan: /gpus/1/threadblocks/0/ops/3/src_buff/0/index: …". A plan that it returns has passed check_structure.
#pragma once

#include <string_view>
#include <variant>

#include "plan/plan.h"
#include "plan/template/template.h"

namespace tutti::plan {

// A template is written out (written_out), so it has passed check_structure too.
Plan read_plan(std::string_view text);

// A template as it stands; only its form and its rank 0 have been read.
std::variant<Plan, Template> read_plan_or_template(std::string_view text);

}  // namespace tutti::plan
