// What a launch of a program's own kernel is given, and what the rank keeps of it between calls.
//
// Plain values, for host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel/cuda/scratch_layout.h"
#include "device/cuda/reduce_any.h"
#include "tutti/device/memory.cuh"

namespace tutti::cuda {

inline constexpr int kNativeBlocks = device::kMaxRanks;  // rank blocks of an input, and of an output

// In the rank's own memory. Not in a launch: graphs replay.
struct NativeState {
  std::uint64_t calls = 0;  // that have ended
  std::uint64_t ended = 0;  // thread blocks of this one
};

// The memory that peers map: a word for each thread block and peer, then scratch.
inline constexpr std::size_t kNativeLine = 64;  // of a word: blocks poll them apart
inline constexpr std::size_t kNativeWords = kNativeLine * kMaxBlocks * device::kMaxRanks;

struct NativeArgs {
  std::byte* memory[device::kMaxRanks] = {};  // of every rank, as mapped here
  NativeState* state = nullptr;
  std::byte* user[2 * kNativeBlocks] =
      {};  // rank blocks of the input, then of the output; only the input is not written
  std::uint64_t block_bytes = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint32_t element_bytes = 1;
  std::int32_t root = -1;
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  std::uint32_t averages = 0;
  ReduceSpec spec;  // an average is summed; `divisor` is for its end
};

}  // namespace tutti::cuda
