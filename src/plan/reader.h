// Plans from JSON text: MSCCL++'s format and what Tutti adds to it (docs/plan-format.md).
//
// Trusts nothing. Every error is tutti::Error of kind InvalidArgument that begins with the JSON path of the fault,
// "plan: /gpus/1/threadblocks/0/ops/3/src_buff/0/index: …". A plan that it returns has passed check_structure.
#pragma once

#include <string_view>

#include "plan/plan.h"

namespace tutti::plan {

Plan read_plan(std::string_view text);

}  // namespace tutti::plan
