// How chunks become bytes: the one place that knows, for executors, simulator and verifier.
//
// The input and output of a collective consist of rank blocks (one in all-reduce; one for each rank in the output of
// all-gather, and so on) of B bytes and K chunks each. c = ceil(B / K) rounded up to 16 bytes; chunk k of a block
// covers clamp(B − k·c, 0, c) bytes from k·c. Scratch is not clamped: its stride is c. Packets take two bytes for one
// and lie in a region of their own beside the plain scratch, so neither ever overlaps the other; their offsets count
// from where that region begins. They are never cut short: where a message ends within a chunk the rest of its packets
// is sent as zeros and waited for, so that what packets order does not depend on the size of a message.
//
// An operation moves the common length of its operands. Where an operand crosses from one rank block into the next,
// the operation splits into several moves. A part of a group (GroupPart) begins at a fraction of the operation's
// chunks, rounded down to 16 bytes within the chunk: equal fractions give equal bytes on every rank, whatever B is.
//
// A pipeline moves `unit_bytes` an iteration, ceil(chunks · c / unit_bytes) times on every rank alike; an iteration
// past the end of the data moves nothing and still signals. With reuse_resources scratch has a fixed capacity: a chunk
// of scratch then is a ring of whole units.
//
// Thread rule: values, const after construction.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "plan/links.h"
#include "plan/plan.h"

namespace tutti::plan {

// Scratch of plans with reuse_resources, as MSCCL++ has it.
inline constexpr std::int64_t kReusedScratchBytes = std::int64_t{64} << 20;
inline constexpr std::int64_t kChunkAlignment = 16;

// Places in lists by BufferKind.
inline constexpr int kIn = static_cast<int>(BufferKind::kInput);
inline constexpr int kOut = static_cast<int>(BufferKind::kOutput);

// How the buffers of a plan are cut into rank blocks; independent of the message.
struct Shape {
  std::array<std::int32_t, 2> blocks{};        // by BufferKind: rank blocks of input and output
  std::array<std::int32_t, 2> block_chunks{};  // by BufferKind: K
};

Shape shape_of(const Plan& plan);

// Throws InvalidArgument if the chunk counts do not fit the collective, or loops cannot be cut into bytes.
void check_shape(const Plan& plan);

// What the plan's scratch holds anywhere.
struct ScratchUse {
  bool plain = false;
  bool packets = false;
};
ScratchUse scratch_use(const Plan& plan);

// The unit_size of a plan whose scratch can be a ring: all its use is in pipelines of that unit, one chunk at a time.
// 0 if it cannot.
std::int64_t ring_unit(const Plan& plan);

// The largest rank block with which a call needs no such ring, since all chunks fit into the reused scratch side by
// side; INT64_MAX for plans that never need one.
std::int64_t bytes_without_ring(const Plan& plan);

// One contiguous piece of an operation.
struct Move {
  std::int64_t bytes = 0;             // of payload, also where an operand holds packets
  std::int32_t pair = 0;              // pairwise operations: which source goes to which destination
  std::vector<std::int64_t> sources;  // byte offset in each source's buffer, of packets in their region of scratch; in
                                      // a pair of the one source
  std::vector<std::int64_t> destinations;  // … and in each destination's
};

// Refers to the plan, which must outlive it.
class Sizes {
 public:
  // Of a call whose rank blocks have `input_block_bytes` and `output_block_bytes`; they differ only in plans of kind
  // kTest and kCustom. Throws Unsupported if reused scratch cannot hold the plan at this size, or a buffer, scratch or
  // loop would pass 2^60 bytes.
  Sizes(const Plan& plan, std::int64_t input_block_bytes, std::int64_t output_block_bytes);
  Sizes(const Plan& plan, std::int64_t block_bytes) : Sizes(plan, block_bytes, block_bytes) {}

  std::int64_t chunk_bytes() const { return chunk_bytes_; }  // c

  // Bytes that one invocation needs of a rank's scratch; with double scratch there are two of these.
  std::int64_t scratch_bytes(std::int32_t rank) const;

  std::int64_t iterations(const IterationContext& context) const;

  // The moves of an operation of `rank` that is not in a pipeline, in ascending order. Empty if no byte is left.
  std::vector<Move> moves_of(std::int32_t rank, const ThreadBlock& block, const Operation& op) const;

  // … of one iteration of the pipeline that it stands in.
  std::vector<Move> moves_of(std::int32_t rank, const ThreadBlock& block, const Operation& op,
                             const IterationContext& context, std::int64_t iteration) const;

  // Where part `index` of `size` of `chunks` chunks begins, in bytes.
  std::int64_t part_begin(std::int64_t chunks, std::int64_t index, std::int64_t size) const;

 private:
  struct View;
  struct Window {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t shift = 0;  // of scratch operands: where the ring has wrapped
  };
  // `window_of` says what of an operand of so many chunks: pairs may differ in size.
  std::vector<Move> moves_in(std::int32_t rank, const ThreadBlock& block, const Operation& op,
                             const std::function<Window(std::int64_t chunks)>& window_of) const;
  void cut(const std::vector<View>& from, const std::vector<View>& to, Window window, std::int32_t pair,
           std::vector<Move>& moves) const;
  View view_of(std::int32_t rank, const ThreadBlock& block, const Operation& op, const Operand& operand,
               bool packets) const;
  std::int64_t cut_after(const View& view, std::int64_t begin, std::int64_t end) const;

  const Plan& plan_;
  Links links_;
  Shape shape_;
  ScratchUse use_;
  std::array<std::int64_t, 2> block_bytes_{};
  std::int64_t chunk_bytes_ = 0;
  std::int64_t scratch_stride_ = 0;  // c, or less where reused scratch wraps
};

}  // namespace tutti::plan
