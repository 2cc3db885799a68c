#include "device/cpu/kernels.h"

#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "device/cpu/kernel_table.h"

namespace tutti::cpu {
namespace {

// The table of the best instruction set of this machine, made at first use.
const KernelTable& kernels() noexcept {
  static const KernelTable table = make_kernel_table();
  return table;
}

}  // namespace

KernelTable make_kernel_table() {
  KernelTable table;
  fill_integer_kernels(table);
  fill_float_kernels(table);
  fill_half_kernels(table);
  fill_fp8_kernels(table);
  fill_copy_kernels(table);
  return table;
}

void reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count, DataType dtype,
            ReduceOp op, int divisor) noexcept {
  assert(supports(dtype, op) && n_dsts >= 1 && n_srcs >= 1);
  kernels().at(dtype, op)(dsts, n_dsts, srcs, n_srcs, count, divisor);
}

void scale(void* dst, const void* src, std::size_t count, DataType dtype, double factor) noexcept {
  assert(kernels().scale_of(dtype) != nullptr);
  // The rounding of bf16 relies on NaNs without a payload in their low bits.
  if (std::isnan(factor)) factor = std::numeric_limits<double>::quiet_NaN();
  kernels().scale_of(dtype)(dst, src, count, factor);
}

void copy(void* dst, const void* src, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(dst, src, bytes);
}

void copy_from_peer(void* dst, const void* src, std::size_t bytes) noexcept {
  if (bytes != 0) kernels().copy_from_peer(dst, src, bytes);
}

void copy_streaming(void* dst, const void* src, std::size_t bytes) noexcept {
  if (bytes != 0) kernels().copy_streaming(dst, src, bytes);
}

const char* target_name() noexcept { return kernels().target; }

}  // namespace tutti::cpu
