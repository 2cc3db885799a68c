// Arithmetic on CPU memory: the inner loops of every reduction.
//
// SIMD by Highway with run-time dispatch. All functions accept any alignment and any count, 0 included. They never
// read or write beyond `count` elements.
#pragma once

#include <cstddef>

#include "tutti/types.h"

namespace tutti::cpu {

// False for what makes no sense: bitwise operations on floating and complex types, MIN and MAX of complex,
// AVG of integers and bool, anything on kByte, PREMUL_SUM of integers and bool. bool: SUM and MAX are OR, PRODUCT
// and MIN are AND, as in PyTorch; bitwise operations work on it.
bool supports(DataType dtype, ReduceOp op) noexcept;

// For every k < n_dsts and i < count:
//   dsts[k][i] = (srcs[0][i] op srcs[1][i] op ... op srcs[n_srcs-1][i]) / divisor
// in this order, whatever the vector width, so that all ranks get the same bits. Types narrower than 32 bits
// (bf16, fp16, fp8, complex32) accumulate in fp32 and round once to nearest even. `divisor` is applied for kAvg only,
// in the accumulator. MIN and MAX propagate NaN. kPremulSum behaves as kSum (see scale()). Integers wrap.
// Narrow types are cast as PyTorch casts them: e4m3fn saturates, e5m2 overflows to infinity, the fnuz types to NaN. A
// NaN stays a NaN, its payload may change. MIN and MAX of equal values (zeros of both signs) take the later one.
// supports(dtype, op) must hold.
// A dst may be the same memory as one src or overlap none. n_srcs >= 1, n_dsts >= 1; no limit on either.
void reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count, DataType dtype,
            ReduceOp op, int divisor = 1) noexcept;

// dst[i] = src[i] * factor, in fp32 (fp64 for double) and rounded once; floating and complex types only.
void scale(void* dst, const void* src, std::size_t count, DataType dtype, double factor) noexcept;

// memcpy for any size; regions do not overlap.
void copy(void* dst, const void* src, std::size_t bytes) noexcept;

// The same, for a source that another core has just written.
void copy_from_peer(void* dst, const void* src, std::size_t bytes) noexcept;

// The same with stores that bypass the caches: for destinations larger than the cache that nobody reads soon.
void copy_streaming(void* dst, const void* src, std::size_t bytes) noexcept;

// The instruction set that the dispatch chose, for `tutti doctor`: "AVX3_ZEN4", "AVX2", "NEON", ...
const char* target_name() noexcept;

}  // namespace tutti::cpu
