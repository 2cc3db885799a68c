// Which element types and reductions a plan serves.
#pragma once

#include "plan/plan.h"
#include "tutti/types.h"

namespace tutti::executor {

// Null if the plan can serve a call with this type and operation, else the reason why not. A plan of sums also serves
// averages (the sum is divided at the end) and premultiplied sums (the input is multiplied before); a plan that does
// not reduce serves all.
const char* refusal(const plan::Plan& plan, DataType dtype, ReduceOp op) noexcept;

// What a plan's reduction does; where the plan leaves it open, `any`.
ReduceOp op_of(plan::ReduceKind kind, ReduceOp any) noexcept;

}  // namespace tutti::executor
