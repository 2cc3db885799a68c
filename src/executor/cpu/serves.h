// Which element types and reductions a plan serves.
#pragma once

#include "plan/plan.h"
#include "tutti/types.h"

namespace tutti::executor {

// Null if the plan can serve a call with this type and operation, else the reason why not. A plan of sums also serves
// averages (the sum is divided at the end) and premultiplied sums (the input is multiplied before); a plan that does
// not reduce serves all.
const char* refusal(const plan::Plan& plan, DataType dtype, ReduceOp op) noexcept;

}  // namespace tutti::executor
