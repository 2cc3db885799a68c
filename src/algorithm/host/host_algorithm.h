// What the families of host algorithms have in common.
#pragma once

#include <algorithm>
#include <array>

#include "algorithm/algorithm.h"
#include "device/cpu/kernels.h"

namespace tutti {

class HostAlgorithm : public Algorithm {
 public:
  HostAlgorithm(Collective collective, std::string_view name, std::string_view summary) noexcept
      : collective_(collective), name_(name), summary_(summary) {}
  std::string_view name() const noexcept override { return name_; }
  Collective collective() const noexcept override { return collective_; }
  std::string_view summary() const noexcept override { return summary_; }

 protected:
  static const char* refuse_hosts(const CallShape& shape) noexcept {
    return shape.hosts > 1 ? "needs all ranks on one host" : nullptr;
  }

 private:
  Collective collective_;
  std::string_view name_;
  std::string_view summary_;
};

inline bool sends_a_block_to_each(Collective c) noexcept {
  return c == Collective::kScatter || c == Collective::kReduceScatter || c == Collective::kAllToAll;
}

inline int divisor_of(const Call& call, int ranks) noexcept { return call.op == ReduceOp::kAvg ? ranks : 1; }

// One pointer a rank, on the stack: a host has at most kMaxHostRanks.
using SourceList = std::array<const void*, kMaxHostRanks>;
using TargetList = std::array<void*, kMaxHostRanks>;

// Copies unless the block is already where it belongs (in-place calls).
inline void copy_unless_same(void* dst, const void* src, std::size_t bytes) noexcept {
  if (dst != src && bytes != 0) cpu::copy(dst, src, bytes);
}

// A part of `bytes` for each of n ranks, in units of a cache line so that no two ranks write one line.
struct Partition {
  std::size_t bytes;
  std::size_t part;

  Partition(std::size_t total, int ranks) noexcept : bytes(total) {
    constexpr std::size_t kLine = 64;  // a multiple of every element size
    const auto n = static_cast<std::size_t>(ranks);
    part = ((total + n - 1) / n + kLine - 1) / kLine * kLine;
  }
  std::size_t begin(int rank) const noexcept { return std::min(bytes, part * static_cast<std::size_t>(rank)); }
  std::size_t size(int rank) const noexcept { return std::min(bytes, begin(rank) + part) - begin(rank); }
};

}  // namespace tutti
