// What the kernel of algorithm/cuda/probe.cuh is told.
#pragma once

#include <cstdint>

namespace tutti::cuda {

inline constexpr int kProbeThreads = 256 + 32;  // workers and the control warp

struct ProbeArgs {
  std::uint64_t round = 1;  // from 1; different in every probe over the same scratch
  std::uint64_t timeout_ns = 0;
  int check_lines = 0;
};

}  // namespace tutti::cuda
