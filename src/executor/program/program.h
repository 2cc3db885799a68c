// A plan for one rank and one size of message, as executors run it: flat lists of instructions.
//
// Decoding resolves everything that does not change from call to call: chunks to offsets, channels to counters, loops
// to their iterations, operations on several ranges to one instruction each. Operands name a base and an offset; the
// bases (a rank's input, output or scratch) get their addresses when an invocation begins.
//
// Thread rule: const after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/program/packets.h"
#include "executor/program/tables.h"
#include "plan/plan.h"

namespace tutti::executor {

enum class Code : std::uint8_t {
  kSignal,        // raises `counter` of `peer` by one; `agent` is the memory channel
  kWait,          // takes one from `counter`
  kRelease,       // raises semaphore `counter`
  kAcquire,       // takes one from semaphore `counter`
  kBarrier,       // meets the other thread blocks of barrier `counter`, `agent` in all
  kCopy,          // source -> targets
  kReduce,        // sources, in order -> targets
  kPack,          // plain source -> packets
  kPad,           // zeros -> packets
  kForward,       // packets -> packets
  kUnpack,        // packets -> plain
  kFold,          // packets in order, then a plain source -> a plain target, then packets
  kAwaitPackets,  // until all packets of the source are there
  kPost,          // hands a copy to agent `agent`; `packets` says what is copied
  kPostSignal,    // hands a signal of `counter` to agent `agent`
  kFlush,         // until agent `agent` has nothing left
};

struct Pointer {
  std::uint32_t base = 0;  // index into Program::bases()
  std::int64_t offset = 0;
};

struct Instruction {
  Code code = Code::kSignal;
  bool packets = false;
  bool far = false;    // kPost, kPostSignal: to a rank of another host; `counter` is the stream (inflow.h)
  bool rides = false;  // far kPostSignal: comes with the put before it, needs no message of its own
  plan::ReduceKind reduce = plan::ReduceKind::kSum;
  std::uint32_t sources = 0;
  std::uint32_t targets = 0;
  std::uint32_t pointers = 0;  // index of the first; targets follow sources
  std::uint32_t counter = 0;
  std::uint32_t agent = 0;
  std::int32_t peer = -1;      // the other end of the channel
  std::uint32_t position = 0;  // index into Program::positions()
  std::int64_t bytes = 0;      // of payload
};

// Where an instruction stands in the plan.
struct Position {
  std::int32_t block = 0;
  std::int32_t operation = 0;
  std::int32_t inner = -1;  // within a pipeline
};

enum class Area : std::uint8_t { kInput, kOutput, kPlain, kPackets };

struct BaseRef {
  std::int32_t rank = 0;
  Area area = Area::kInput;
  std::int32_t block = 0;  // rank block of input or output
};

// What a message from a rank of another host brings.
struct Arrival {
  std::uint32_t pointer = 0;  // where it lands; of no meaning without bytes
  std::int64_t bytes = 0;     // as they travel: packets with their flags
  bool packets = false;
  std::uint32_t signals = 0;  // that come with it
};

// All messages of one stream (inflow.h), in their order.
struct Inflow {
  std::int32_t peer = -1;
  std::uint32_t stream = 0;
  std::uint32_t counter = 0;  // that its signals raise
  std::vector<Arrival> arrivals;
};

// Bytes of the message that a far kPost becomes.
inline std::int64_t wire_bytes(const Instruction& post) noexcept {
  return post.packets ? packets_of(post.bytes) * kPacketBytes : post.bytes;
}

class Program {
 public:
  // Throws Unsupported if the plan cannot run at this size.
  Program(const Tables& tables, std::int32_t rank, std::int64_t input_bytes, std::int64_t output_bytes);

  const std::vector<std::vector<Instruction>>& blocks() const noexcept { return blocks_; }
  const std::vector<Pointer>& pointers() const noexcept { return pointers_; }
  const std::vector<BaseRef>& bases() const noexcept { return bases_; }
  const std::vector<Position>& positions() const noexcept { return positions_; }
  std::uint32_t barriers() const noexcept { return barriers_; }
  std::uint32_t agents() const noexcept { return agents_; }
  std::uint32_t most_posts() const noexcept { return most_posts_; }  // to one agent
  std::uint32_t most_operands() const noexcept { return most_operands_; }
  const std::vector<Inflow>& inflows() const noexcept { return inflows_; }

 private:
  friend class Decoder;
  explicit Program(std::int32_t rank) : rank_(rank) {}
  void add_inflows(const Tables& tables, const Program& sender);

  std::int32_t rank_;
  std::vector<std::vector<Instruction>> blocks_;
  std::vector<Pointer> pointers_;
  std::vector<BaseRef> bases_;
  std::vector<Position> positions_;
  std::uint32_t barriers_ = 0;
  std::uint32_t agents_ = 0;  // one for each port channel
  std::uint32_t most_posts_ = 0;
  std::uint32_t most_operands_ = 1;
  std::vector<Inflow> inflows_;
};

}  // namespace tutti::executor
