// A plan for one rank and one size of message, as a kernel runs it: flat arrays of records in the rank's own device
// memory. All addresses are resolved but those of the caller's tensors, which come with each call.
//
// Every order between thread blocks, of one rank or of two, is a word that one block raises and others wait for:
// signals of channels lie in the memory of the rank that waits, semaphores and barriers in the rank's own. Words rise
// for the life of the communicator; who raises and who waits each keep their own count (a slot), so nothing is ever
// reset and nothing depends on how many calls there were.
//
// Plain values, for host and device. Thread rule: const during a kernel, but for the words and slots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/reduce_any.h"
#include "tutti/device/memory.cuh"

namespace tutti::executor {

enum class DeviceCode : std::uint8_t {
  kSignal,       // raises `sources` words by one, each by a lane of its own
  kWait,         // takes one from each of `sources` words
  kCopy,         // source -> targets
  kReduce,       // sources, in order -> targets
  kAverage,      // source, divided -> target
  kPack,         // plain source -> packets
  kPad,          // zeros -> packets
  kForward,      // packets -> packets, when they are there
  kCopyPackets,  // packets -> packets, as they are
  kUnpack,       // packets -> plain
  kFold,         // sources in order, all packets but at most one (DeviceOp::plain) -> a plain target, packets
  kAwait,        // until all packets of the source are there
};

inline constexpr std::uint8_t kNoPlain = 0xff;

struct DeviceOp {
  DeviceCode code = DeviceCode::kSignal;
  std::uint8_t joins = 0;         // not zero: all lanes have ended what came before
  std::uint8_t fences = 0;        // not zero: its packets also order plain data
  std::uint8_t plain = kNoPlain;  // of a kFold: which of its sources is plain, or none
  std::uint32_t sources = 0;
  std::uint32_t targets = 0;
  std::uint32_t first = 0;  // of its operands; targets follow sources
  std::uint64_t bytes = 0;  // of payload
  std::uint64_t unused = 0;
};
static_assert(sizeof(DeviceOp) == 32);

inline constexpr int kUserBlocks = device::kMaxRanks;  // of input, and of output

// Where an operand lies: kFixed, in the caller's tensors (1 + the index into PlanArgs::user), or in another rank's:
// kPeers + (the index into PlanArgs::peers) * kUserBlocks + its rank block.
inline constexpr std::uint16_t kFixed = 0;
inline constexpr std::uint16_t kPeers = 1 + 2 * kUserBlocks;

struct DeviceOperand {
  std::uint64_t value = 0;  // an address (kFixed), or an offset
  std::uint32_t extra = 0;  // of a word: its slot; else how far the other half of scratch is away, in 16 bytes
  std::uint16_t place = kFixed;
  std::uint16_t peer = 0;  // whom to blame if it does not come
};
static_assert(sizeof(DeviceOperand) == 16);

// The records of one thread block.
struct DeviceBlock {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint32_t first_operand = 0;
  std::uint32_t operands = 0;
};
static_assert(sizeof(DeviceBlock) == 16);

// Tensors that all ranks have mapped, of a call that reaches into them: DeviceVariant::mapped().
struct PeerBuffers {
  std::byte* at[2 * device::kMaxRanks] = {};  // by rank, inputs, then outputs: the first rank block, in this segment
  std::uint64_t stride = 0;                   // from there to the next rank block; 0: there are none
  std::uint64_t* agreed = nullptr;            // the rank's own word, raised once all ranks are known to make this call

  TUTTI_DEVICE std::byte* block(int index, int rank_block) const {
    return at[index] + static_cast<std::uint64_t>(rank_block) * stride;
  }
  // No block touches them before all ranks are known to make this call.
  TUTTI_DEVICE bool any() const { return stride != 0; }
};

// What a launch is given.
struct PlanArgs {
  const DeviceOp* ops = nullptr;
  const DeviceOperand* operands = nullptr;
  const DeviceBlock* blocks = nullptr;
  std::uint64_t* invocations = nullptr;  // by block
  std::uint64_t* slots = nullptr;
  std::byte* user[2 * kUserBlocks] = {};  // rank blocks of the input, then of the output; only the input is not written
  PeerBuffers peers;
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  std::uint32_t halves = 1;  // of scratch
  cuda::ReduceSpec spec;     // an average is summed; `divisor` is for kAverage
};

}  // namespace tutti::executor
