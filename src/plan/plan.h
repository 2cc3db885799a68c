// The intermediate representation of a plan: what every rank's thread blocks do to carry out one collective.
//
// Plain values, compared member by member and free of pointers: the reader makes them from JSON, the writer writes
// them, the verifier, the simulator and the executors read them. What an operation may hold and what it means is in
// operations.h; how chunks become bytes is in sizes.h; which channel meets which is in links.h.
//
// Thread rule: values. A plan that is shared is const.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tutti::plan {

inline constexpr int kPlanVersion = 1;

// What the plan computes. kTest and kCustom have buffers and no defined result.
enum class PlanCollective : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendRecv,  // every rank's output is the input of exactly one rank
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kTest,
  kCustom,  // and any name that is none of these, kept in Plan::collective_name: it loads and is not proven
};

enum class Protocol : std::uint8_t { kSimple, kLL };

// kAny: whatever the caller asks for. A kSum plan also serves averages.
enum class ReduceKind : std::uint8_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor, kAny };

enum class BufferKind : std::uint8_t { kInput, kOutput, kScratch };
inline constexpr int kBufferKindCount = 3;

enum class ChannelKind : std::uint8_t { kNone, kMemory, kPort, kSwitch };
inline constexpr int kChannelKindCount = 4;

enum class OpKind : std::uint8_t {
  kNop,
  kBarrier,
  kSignal,
  kWait,
  kRelaxedSignal,
  kRelaxedWait,
  kSemAcquire,
  kSemRelease,
  kFlush,
  kCopy,
  kPut,
  kPutWithSignal,
  kPutWithSignalAndFlush,
  kGet,
  kReduce,
  kReduceSend,
  kReadReduce,
  kReadReduceSend,
  kCopyPackets,
  kPutPackets,
  kReadPutPackets,
  kUnpackPackets,
  kReducePackets,
  kReduceSendPackets,
  kReduceCopyPackets,
  kReduceCopySendPackets,
  kGroupLoadReduce,
  kGroupLoadReduceStore,
  kGroupStore,
  kGroupStorePackets,
  kPipeline,
};
inline constexpr int kOpKindCount = 31;

// A range of chunks that an operation reads or writes.
struct Operand {
  enum class Place : std::uint8_t {
    kLocal,   // `buffer` of this rank
    kRemote,  // `id` indexes ThreadBlock::remote_buffers of the operation's channel kind
    kGroup,   // `id` indexes ThreadBlock::channels of kSwitch: the same range of every rank of the group
  };
  Place place = Place::kLocal;
  BufferKind buffer = BufferKind::kInput;  // kLocal only; kInput elsewhere
  std::int32_t id = 0;                     // kRemote and kGroup only; 0 elsewhere
  std::int32_t index = 0;                  // first chunk
  std::int32_t size = 0;                   // chunks, at least 1

  bool operator==(const Operand&) const = default;
};

// This block carries out part `index` of `size` of the operation (sizes.h says where parts begin).
struct GroupPart {
  std::int32_t index = 0;
  std::int32_t size = 1;

  bool operator==(const GroupPart&) const = default;
};

// How a pipeline repeats its body: each iteration moves `unit_bytes` of `chunks` chunks.
struct IterationContext {
  std::int64_t unit_bytes = 0;
  std::int32_t chunks = 0;

  bool operator==(const IterationContext&) const = default;
};

struct Operation {
  OpKind kind = OpKind::kNop;
  ChannelKind channel = ChannelKind::kNone;
  ReduceKind reduce = ReduceKind::kSum;  // operations that reduce
  std::vector<Operand> sources;          // in the order of operations.h
  std::vector<Operand> destinations;
  std::vector<std::int32_t> channel_ids;    // index ThreadBlock::channels of `channel`
  std::vector<std::int32_t> semaphore_ids;  // index Rank::semaphores
  std::int32_t barrier_id = 0;              // kBarrier
  std::int32_t barrier_blocks = 0;          // kBarrier: how many thread blocks meet
  std::optional<GroupPart> part;
  bool fence = false;           // operations on packets: they also order plain data, written before and read after
  IterationContext iteration;   // kPipeline
  std::vector<Operation> body;  // kPipeline; holds no pipeline
  std::string origin;           // "program.py:42", or empty

  bool operator==(const Operation&) const = default;
};

struct ThreadBlock {
  std::vector<Operation> operations;
  // By ChannelKind. kMemory and kPort index Rank::channels of that kind, kSwitch indexes Rank::switch_channels.
  std::array<std::vector<std::int32_t>, kChannelKindCount> channels;
  // By ChannelKind (kMemory, kPort): index Rank::remote_buffers.
  std::array<std::vector<std::int32_t>, kChannelKindCount> remote_buffers;

  const std::vector<std::int32_t>& channels_of(ChannelKind kind) const { return channels[static_cast<int>(kind)]; }
  const std::vector<std::int32_t>& buffers_of(ChannelKind kind) const { return remote_buffers[static_cast<int>(kind)]; }
  bool operator==(const ThreadBlock&) const = default;
};

// A multicast group over one buffer of its ranks.
struct SwitchChannel {
  BufferKind buffer = BufferKind::kInput;
  std::vector<std::int32_t> ranks;

  bool operator==(const SwitchChannel&) const = default;
};

// A peer's buffer, and through which channels it is reached.
struct RemoteBuffer {
  std::int32_t rank = 0;
  BufferKind buffer = BufferKind::kInput;
  bool by_memory = false;
  bool by_port = false;

  bool operator==(const RemoteBuffer&) const = default;
};

struct Rank {
  std::array<std::int32_t, kBufferKindCount> chunks{};  // by BufferKind
  std::vector<ThreadBlock> blocks;
  // By ChannelKind (kMemory, kPort): the peer of each channel.
  std::array<std::vector<std::int32_t>, kChannelKindCount> channels;
  std::vector<SwitchChannel> switch_channels;
  std::vector<RemoteBuffer> remote_buffers;
  std::vector<std::int32_t> semaphores;  // initial values

  std::int32_t chunks_of(BufferKind kind) const { return chunks[static_cast<int>(kind)]; }
  const std::vector<std::int32_t>& channels_of(ChannelKind kind) const { return channels[static_cast<int>(kind)]; }
  bool operator==(const Rank&) const = default;
};

struct Plan {
  int version = kPlanVersion;
  std::string name;
  std::string collective_name;  // as in the JSON text
  PlanCollective collective = PlanCollective::kCustom;
  Protocol protocol = Protocol::kSimple;
  bool in_place = false;
  bool reuse_resources = false;  // scratch of a fixed size: loops wrap in it
  bool writes_input = false;     // not in place, and yet it writes inputs: it has to be given a copy
  bool double_scratch = false;   // invocations alternate between two halves of scratch
  // What the operations that reduce have in common; empty if they differ or if none reduces.
  std::optional<ReduceKind> reduce;
  std::int32_t root = 0;  // broadcast, reduce, gather, scatter
  std::int32_t threads_per_block = 1024;
  std::int64_t buffer_alignment = 16;
  std::uint64_t min_message_bytes = 0;
  std::uint64_t max_message_bytes = std::numeric_limits<std::uint64_t>::max();
  std::string source;  // where the plan was made, or empty
  std::vector<Rank> ranks;

  bool operator==(const Plan&) const = default;
};

// An operation of a rank: of a thread block, or if `inner` is not negative of a pipeline's body there.
inline const Operation& operation_at(const Rank& rank, std::int32_t block, std::int32_t operation, std::int32_t inner) {
  const Operation& op = rank.blocks[static_cast<std::size_t>(block)].operations[static_cast<std::size_t>(operation)];
  return inner >= 0 ? op.body[static_cast<std::size_t>(inner)] : op;
}

// Whether some operation repeats others.
inline bool has_loops(const Plan& plan) {
  for (const Rank& rank : plan.ranks) {
    for (const ThreadBlock& block : rank.blocks) {
      for (const Operation& op : block.operations) {
        if (!op.body.empty()) return true;
      }
    }
  }
  return false;
}

}  // namespace tutti::plan
