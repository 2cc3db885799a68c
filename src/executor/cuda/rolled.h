// The records of a thread block with their repetitions found again: what a plan's loops, or its programs' own, have
// written out.
//
// Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/device_program.h"

namespace tutti::executor {

// `operands` are of memory that stands for the ranks' own: above these bits an address says whose it is.
inline constexpr int kSpaceBits = 40;

// Records [first, first + length), `turns` times. From turn to turn nothing differs but the operands' values, each by a
// difference of its own that is the same at every turn, within one rank's memory: how ranks' lie apart is not known.
struct Stretch {
  std::size_t first = 0;
  std::size_t length = 0;
  std::uint64_t turns = 1;
};

// All of `ops`, in their order. `operands`: what their `first` counts in.
std::vector<Stretch> roll(std::span<const DeviceOp> ops, std::span<const DeviceOperand> operands);

}  // namespace tutti::executor
