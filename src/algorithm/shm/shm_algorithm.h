// What the families of host algorithms have in common.
#pragma once

#include <array>

#include "algorithm/native_algorithm.h"
#include "device/cpu/kernels.h"

namespace tutti {

class ShmAlgorithm : public NativeAlgorithm {
 public:
  using NativeAlgorithm::NativeAlgorithm;

 protected:
  static const char* refuse_hosts(const CallShape& shape) noexcept {
    return shape.hosts > 1 ? "needs all ranks on one host" : nullptr;
  }
};

// One pointer a rank, on the stack: a host has at most kMaxHostRanks.
using SourceList = std::array<const void*, kMaxHostRanks>;
using TargetList = std::array<void*, kMaxHostRanks>;

}  // namespace tutti
