// Reductions of bf16, fp16 and complex fp16: in fp32, rounded once.
#include "device/cpu/kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_half.cc"
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

void fill_half(KernelTable& table) {
  fill_real<Bf16Type>(table, DataType::kBfloat16);
  fill_real<WidenedType<F16, 1>>(table, DataType::kFloat16);
  fill_complex<WidenedType<F16, 2>>(table, DataType::kComplex32);
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::cpu {

HWY_EXPORT(fill_half);

void fill_half_kernels(KernelTable& table) { HWY_DYNAMIC_DISPATCH(fill_half)(table); }

}  // namespace tutti::cpu
#endif  // HWY_ONCE
