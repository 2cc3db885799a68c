// What a launch of a compiled plan is given: where this rank's buffers and all ranks' memory lie. Everything else is
// part of its code.
#pragma once

#include "executor/cuda/device_program.h"

namespace tutti::executor {

struct CompiledArgs {
  std::byte* memory[device::kMaxRanks] = {};  // of the plan, by rank, as mapped here: DeviceMemory::ranks
  std::byte* state = nullptr;                 // the rank's own: invocations by block, slots, words
  std::byte* user[2 * kUserBlocks] = {};      // as of PlanArgs
  PeerBuffers peers;                          // likewise
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
};

}  // namespace tutti::executor
