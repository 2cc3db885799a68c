// Which reductions make sense: see kernels.h.
#include "device/cpu/kernels.h"

namespace tutti::cpu {

bool supports(DataType dtype, ReduceOp op) noexcept {
  if (dtype == DataType::kByte) return false;
  const bool integral = dtype <= DataType::kInt64;  // bool and the integers come first in the enumeration
  const bool complex = dtype >= DataType::kComplex32;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAvg:
      return dtype != DataType::kBool;
    case ReduceOp::kPremulSum:
      return !integral;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !complex;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return integral;
  }
  return false;
}

}  // namespace tutti::cpu
