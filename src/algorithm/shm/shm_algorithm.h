// What the families of host algorithms have in common.
#pragma once

#include <array>

#include "algorithm/built_in_algorithm.h"
#include "device/cpu/kernels.h"

namespace tutti {

class ShmAlgorithm : public BuiltInAlgorithm {
 public:
  using BuiltInAlgorithm::BuiltInAlgorithm;

 protected:
  static const char* refuse_hosts(const CallShape& shape) noexcept {
    return shape.hosts > 1 ? "needs all ranks on one host" : nullptr;
  }
};

// One pointer a rank, on the stack: a host has at most kMaxHostRanks.
using SourceList = std::array<const void*, kMaxHostRanks>;
using TargetList = std::array<void*, kMaxHostRanks>;

// reduce_sources() of what source_of(rank) says.
template <class SourceOf>
void reduce_ranks(const Call& call, const CallContext& c, void* dst, std::size_t bytes,
                  const SourceOf& source_of) noexcept {
  SourceList sources;
  for (int r = 0; r < c.size; ++r) sources[static_cast<std::size_t>(r)] = source_of(r);
  reduce_sources(call, dst, sources.data(), c.size, bytes);
}

}  // namespace tutti
