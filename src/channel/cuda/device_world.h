// What a kernel knows of its group: a value that is passed to every kernel and never changes.
#pragma once

#include "channel/cuda/scratch_layout.h"
#include "tutti/device/wait.cuh"

namespace tutti::cuda {

// What a rank keeps between calls, in its own device memory: nothing of it is a kernel's argument, so graphs can be
// replayed. Written by the block that owns the entry, one kernel at a time.
struct BlockState {
  std::uint64_t sequence = 0;  // calls that this block has taken part in
  std::uint64_t pieces = 0;    // bulk pieces that it has sent
  std::uint64_t busy = 0;      // not zero while a kernel's block of this number runs
  std::uint64_t progress = 0;  // pack_progress() of the last eager call
};
struct MessageState {
  std::uint64_t sent = 0;      // pieces sent to a peer over one channel
  std::uint64_t received = 0;  // and received from it
  std::uint64_t sending = 0;   // not zero while a kernel's block does
  std::uint64_t receiving = 0;
};
// Tickets (tutti/device/wait.cuh) of the last calls that a block has started and ended: the host reads them when it
// wants to know how far the GPU has come.
TUTTI_DEVICE constexpr std::uint64_t pack_progress(std::uint32_t started, std::uint32_t ended) {
  return static_cast<std::uint64_t>(started) << 32 | ended;
}
// Blocks of a plan, at most. Each may have to meet each other, and counts each of them by itself.
inline constexpr int kMostPlanBlocks = 256;
struct RankState {
  BlockState blocks[kMaxBlocks];
  std::uint64_t more_progress[kMostPlanBlocks - kMaxBlocks] = {};  // of a plan's blocks that are no other kernel's
  std::uint64_t message_progress[kMaxBlocks] = {};                 // of the kernels of messages, by block
  MessageState messages[device::kMaxRanks][kMessageChannels];
  std::uint64_t failed = 0;
  std::uint64_t probe = 0;
};
// Of a collective's block.
TUTTI_DEVICE std::uint64_t* progress_of(RankState& state, int block) {
  return block < kMaxBlocks ? &state.blocks[block].progress : &state.more_progress[block - kMaxBlocks];
}

// What every call needs comes first: the fewer lines of parameters a small call touches, the sooner it starts.
struct DeviceWorld {
  int rank = 0;
  int size = 1;
  RankState* state = nullptr;
  std::byte* scratch[device::kMaxRanks] = {};  // of every rank, as mapped here; [rank] is this rank's own
  ScratchLayout layout{1};
  device::Control control;
};

}  // namespace tutti::cuda
