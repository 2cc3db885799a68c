// All kernels of one instruction set, so that a call finds its loop by one look-up.
//
// Ownership: tables are values; their entries point at code. Thread rule: constant once made.
#pragma once

#include <cstddef>

#include "tutti/types.h"

namespace tutti::cpu {

// As reduce() in kernels.h, for one dtype and operation. Null in a table: not supported.
using ReduceKernel = void (*)(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
                              int divisor);
using ScaleKernel = void (*)(void* dst, const void* src, std::size_t count, double factor);
using CopyKernel = void (*)(void* dst, const void* src, std::size_t bytes);

struct KernelTable {
  const char* target = nullptr;
  ReduceKernel reduce[kDataTypeCount][kReduceOpCount] = {};
  ScaleKernel scale[kDataTypeCount] = {};
  CopyKernel copy_streaming = nullptr;
  CopyKernel copy_from_peer = nullptr;

  ReduceKernel& at(DataType dtype, ReduceOp op) noexcept {
    return reduce[static_cast<int>(dtype)][static_cast<int>(op)];
  }
  ReduceKernel at(DataType dtype, ReduceOp op) const noexcept {
    return reduce[static_cast<int>(dtype)][static_cast<int>(op)];
  }
  ScaleKernel& scale_of(DataType dtype) noexcept { return scale[static_cast<int>(dtype)]; }
  ScaleKernel scale_of(DataType dtype) const noexcept { return scale[static_cast<int>(dtype)]; }
};

// Fill in the kernels of one family for the instruction set that Highway's dispatch has chosen.
void fill_integer_kernels(KernelTable& table);
void fill_float_kernels(KernelTable& table);
void fill_half_kernels(KernelTable& table);
void fill_fp8_kernels(KernelTable& table);
void fill_copy_kernels(KernelTable& table);

// A new table for the instruction set chosen now; tests make one for each.
KernelTable make_kernel_table();

}  // namespace tutti::cpu
