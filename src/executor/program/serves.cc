#include "executor/program/serves.h"

#include <algorithm>

#include "base/collective_traits.h"
#include "device/cpu/kernels.h"
#include "plan/operations.h"

namespace tutti::executor {
namespace {

bool agrees(plan::ReduceKind kind, ReduceOp op) noexcept {
  if (kind == plan::ReduceKind::kSum && (op == ReduceOp::kAvg || op == ReduceOp::kPremulSum)) return true;
  return op_of(kind, op) == op;
}

bool reduces(const plan::Plan& plan) noexcept {
  const auto one = [](const plan::Operation& op) {
    return plan::reduces(op.kind) || std::any_of(op.body.begin(), op.body.end(), [](const plan::Operation& inner) {
             return plan::reduces(inner.kind);
           });
  };
  return std::any_of(plan.ranks.begin(), plan.ranks.end(), [&](const plan::Rank& rank) {
    return std::any_of(rank.blocks.begin(), rank.blocks.end(), [&](const plan::ThreadBlock& block) {
      return std::any_of(block.operations.begin(), block.operations.end(), one);
    });
  });
}

}  // namespace

ReduceOp op_of(plan::ReduceKind kind, ReduceOp any) noexcept {
  switch (kind) {
    case plan::ReduceKind::kSum:
      return ReduceOp::kSum;
    case plan::ReduceKind::kProduct:
      return ReduceOp::kProduct;
    case plan::ReduceKind::kMin:
      return ReduceOp::kMin;
    case plan::ReduceKind::kMax:
      return ReduceOp::kMax;
    case plan::ReduceKind::kBand:
      return ReduceOp::kBand;
    case plan::ReduceKind::kBor:
      return ReduceOp::kBor;
    case plan::ReduceKind::kBxor:
      return ReduceOp::kBxor;
    case plan::ReduceKind::kAny:
      break;
  }
  return any;
}

const char* refusal(const plan::Plan& plan, DataType dtype, ReduceOp op) noexcept {
  const std::optional<Collective> call = plan::rules_of(plan.collective).call;
  const bool needs_op = call && tutti::reduces(*call);
  if (plan.reduce && !agrees(*plan.reduce, op)) return "is for another reduction";
  if (!plan.reduce && reduces(plan)) return "mixes reductions, so it serves no reduction of the caller's";
  if ((plan.reduce || needs_op) && !cpu::supports(dtype, op))
    return "reduces, and this element type has no such reduction";
  return nullptr;
}

}  // namespace tutti::executor
