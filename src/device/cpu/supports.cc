// Which reductions make sense: see kernels.h.
#include "device/cpu/kernels.h"

namespace tutti::cpu {

bool supports(DataType dtype, ReduceOp op) noexcept {
  if (dtype == DataType::kByte) return false;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
      return true;
    case ReduceOp::kAvg:
      return dtype != DataType::kBool;
    case ReduceOp::kPremulSum:
      return !is_integral(dtype);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !is_complex(dtype);
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return is_integral(dtype);
  }
  return false;
}

}  // namespace tutti::cpu
