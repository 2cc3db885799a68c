// Reductions of bool and the integers.
#include "device/cpu/kernels_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/kernels_integer.cc"
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "hwy/foreach_target.h"  // IWYU pragma: keep

// After foreach_target.h, which includes this file once per instruction set.
#include "device/cpu/kernel_table.h"
#include "device/cpu/kernels_lanes-inl.h"
#include "device/cpu/kernels_ops-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {

// The average of integers: their sum, which wraps as SUM does, divided by the number of ranks and cut towards zero, as
// NCCL does it. It is made block by block in memory of its own, since a dst may be a src, and divided while still
// cached.
template <class Unsigned, typename T>
void average_kernel(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
                    int divisor) {
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  using Narrow = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>;
  using Quotient = std::conditional_t<sizeof(T) == sizeof(Wide), Wide, Narrow>;  // holds any divisor
  constexpr std::size_t kBlock = 1024;
  T sums[kBlock];
  void* const into = sums;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t here = std::min(kBlock, count - first);
    std::memcpy(sums, static_cast<const T*>(srcs[0]) + first, here * sizeof(T));
    for (int s = 1; s < n_srcs; ++s) {
      const void* pair[2] = {sums, static_cast<const T*>(srcs[s]) + first};
      reduce_kernel<Unsigned, Sum, Keep>(&into, 1, pair, 2, here, 1);
    }
    for (std::size_t i = 0; i < here; ++i) {
      sums[i] = static_cast<T>(static_cast<Quotient>(sums[i]) / static_cast<Quotient>(divisor));
    }
    for (int d = 0; d < n_dsts; ++d) std::memcpy(static_cast<T*>(dsts[d]) + first, sums, here * sizeof(T));
  }
}

// Everything but MIN, MAX and AVG is the same for signed and unsigned.
template <typename U, typename S>
void fill_width(KernelTable& table, DataType u, DataType s) {
  using Unsigned = PlainType<U, 1, false>;
  using Signed = PlainType<S, 1, false>;
  for (const DataType t : {u, s}) {
    table.at(t, ReduceOp::kSum) = reduce_kernel<Unsigned, Sum, Keep>;
    table.at(t, ReduceOp::kProduct) = reduce_kernel<Unsigned, Product, Keep>;
    table.at(t, ReduceOp::kBand) = reduce_kernel<Unsigned, BitAnd, Keep>;
    table.at(t, ReduceOp::kBor) = reduce_kernel<Unsigned, BitOr, Keep>;
    table.at(t, ReduceOp::kBxor) = reduce_kernel<Unsigned, BitXor, Keep>;
  }
  table.at(u, ReduceOp::kAvg) = average_kernel<Unsigned, U>;
  table.at(s, ReduceOp::kAvg) = average_kernel<Unsigned, S>;
  table.at(u, ReduceOp::kMin) = reduce_kernel<Unsigned, IntegerMin, Keep>;
  table.at(u, ReduceOp::kMax) = reduce_kernel<Unsigned, IntegerMax, Keep>;
  table.at(s, ReduceOp::kMin) = reduce_kernel<Signed, IntegerMin, Keep>;
  table.at(s, ReduceOp::kMax) = reduce_kernel<Signed, IntegerMax, Keep>;
}

void fill_integer(KernelTable& table) {
  fill_width<std::uint8_t, std::int8_t>(table, DataType::kUint8, DataType::kInt8);
  fill_width<std::uint16_t, std::int16_t>(table, DataType::kUint16, DataType::kInt16);
  fill_width<std::uint32_t, std::int32_t>(table, DataType::kUint32, DataType::kInt32);
  fill_width<std::uint64_t, std::int64_t>(table, DataType::kUint64, DataType::kInt64);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBor}) {
    table.at(DataType::kBool, op) = reduce_kernel<BoolType, BitOr, Keep>;
  }
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBand}) {
    table.at(DataType::kBool, op) = reduce_kernel<BoolType, BitAnd, Keep>;
  }
  table.at(DataType::kBool, ReduceOp::kBxor) = reduce_kernel<BoolType, BitXor, Keep>;
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tutti::cpu {

HWY_EXPORT(fill_integer);

void fill_integer_kernels(KernelTable& table) { HWY_DYNAMIC_DISPATCH(fill_integer)(table); }

}  // namespace tutti::cpu
#endif  // HWY_ONCE
