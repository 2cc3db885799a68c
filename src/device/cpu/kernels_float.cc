// Reductions of fp32, fp64 and their complex numbers.
#include "device/cpu/kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_float.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per instruction set.
#include "device/cpu/kernel_table.h"
#include "device/cpu/kernels_lanes-inl.h"
#include "device/cpu/kernels_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {

void fill_float(KernelTable& table) {
  fill_real<PlainType<float, 1, true>>(table, DataType::kFloat32);
  fill_real<PlainType<double, 1, true>>(table, DataType::kFloat64);
  fill_complex<PlainType<float, 2, false>>(table, DataType::kComplex64);
  fill_complex<PlainType<double, 2, false>>(table, DataType::kComplex128);
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::cpu {

HWY_EXPORT(fill_float);

void fill_float_kernels(KernelTable& table) { HWY_DYNAMIC_DISPATCH(fill_float)(table); }

}  // namespace tutti::cpu
#endif  // HWY_ONCE
