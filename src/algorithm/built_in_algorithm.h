// What the built-in algorithms have in common, over shared memory or over messages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "algorithm/algorithm.h"
#include "base/rounding.h"
#include "device/cpu/kernels.h"

namespace tutti {

class BuiltInAlgorithm : public Algorithm {
 public:
  BuiltInAlgorithm(Collective collective, std::string_view name, std::string_view summary) noexcept
      : collective_(collective), name_(name), summary_(summary) {}
  std::string_view name() const noexcept final { return name_; }
  Collective collective() const noexcept final { return collective_; }
  std::string_view summary() const noexcept final { return summary_; }

 private:
  Collective collective_;
  std::string_view name_;
  std::string_view summary_;
};

inline int divisor_of(const Call& call, int ranks) noexcept { return call.op == ReduceOp::kAvg ? ranks : 1; }

// Reduces a source of each of n ranks, in their order.
inline void reduce_sources(const Call& call, void* dst, const void* const* sources, int n, std::size_t bytes) noexcept {
  cpu::reduce(&dst, 1, sources, n, bytes / size_of(call.dtype), call.dtype, call.op, divisor_of(call, n));
}

// Copies unless the block is already where it belongs (in-place calls).
inline void copy_unless_same(void* dst, const void* src, std::size_t bytes) noexcept {
  if (dst != src && bytes != 0) cpu::copy(dst, src, bytes);
}

// A part of `total` bytes for each of n ranks, in units of a cache line: no two ranks write one line, and no element is
// cut.
class Partition {
 public:
  Partition(std::size_t total, int ranks) noexcept : total_(total) {
    constexpr std::size_t kLine = 64;  // a multiple of every element size
    part_ = round_up(ceil_div(total, static_cast<std::size_t>(ranks)), kLine);
  }
  std::size_t begin(int rank) const noexcept { return std::min(total_, part_ * static_cast<std::size_t>(rank)); }
  std::size_t size(int rank) const noexcept { return begin(rank + 1) - begin(rank); }

 private:
  std::size_t total_;
  std::size_t part_;
};

}  // namespace tutti
