// Reductions of the 8-bit floats: in fp32, rounded once.
#include "device/cpu/kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_fp8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per instruction set.
#include "device/cpu/kernel_table.h"
#include "device/cpu/kernels_codec-inl.h"
#include "device/cpu/kernels_lanes-inl.h"
#include "device/cpu/kernels_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {

void fill_fp8(KernelTable& table) {
  fill_real<WidenedType<E4M3fn, 1>>(table, DataType::kFloat8E4M3fn);
  fill_real<WidenedType<E5M2, 1>>(table, DataType::kFloat8E5M2);
  fill_real<WidenedType<E4M3fnuz, 1>>(table, DataType::kFloat8E4M3fnuz);
  fill_real<WidenedType<E5M2fnuz, 1>>(table, DataType::kFloat8E5M2fnuz);
  fill_real<WidenedType<E8M0fnu, 1>>(table, DataType::kFloat8E8M0fnu);
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::cpu {

HWY_EXPORT(fill_fp8);

void fill_fp8_kernels(KernelTable& table) { HWY_DYNAMIC_DISPATCH(fill_fp8)(table); }

}  // namespace tutti::cpu
#endif  // HWY_ONCE
