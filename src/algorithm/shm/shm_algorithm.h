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
  // Of a call of one step: nobody returns before everybody has finished with everybody's memory.
  static Outcome finish(CallContext& c) noexcept {
    const std::uint64_t done = c.host->step_base() + 1;
    c.host->publish(StepLane::kDrained, done);
    const Outcome outcome = c.host->await_step_all(StepLane::kDrained, done, c.deadline);
    c.host->advance_steps(1);
    return outcome;
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
