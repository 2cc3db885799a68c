// Makes plans for tests without JSON: channels and remote buffers are entered into their tables as they are used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

// Index of `value` in `list`, appended if it is new.
template <typename T>
std::int32_t intern(std::vector<T>& list, const T& value) {
  const auto found = std::find(list.begin(), list.end(), value);
  if (found != list.end()) return static_cast<std::int32_t>(found - list.begin());
  list.push_back(value);
  return static_cast<std::int32_t>(list.size()) - 1;
}

inline Operand local(BufferKind buffer, std::int32_t index, std::int32_t size = 1) {
  return {Operand::Place::kLocal, buffer, 0, index, size};
}

// The `body` over `chunks` in pieces of `unit` bytes.
inline Operation loop_of(std::int32_t chunks, std::vector<Operation> body, std::int64_t unit = std::int64_t{1} << 20) {
  Operation loop;
  loop.kind = OpKind::kPipeline;
  loop.iteration = {unit, chunks};
  loop.body = std::move(body);
  return loop;
}

inline constexpr BufferKind kI = BufferKind::kInput;
inline constexpr BufferKind kO = BufferKind::kOutput;
inline constexpr BufferKind kS = BufferKind::kScratch;

class PlanBuilder {
 public:
  // Every rank has the same chunks: of input, output, scratch.
  PlanBuilder(PlanCollective collective, std::int32_t ranks, std::int32_t input, std::int32_t output,
              std::int32_t scratch);

  Plan plan;  // settings may be changed at will

  // One thread block of one rank.
  class Block {
   public:
    Block(PlanBuilder& builder, std::int32_t rank, std::int32_t block)
        : builder_(&builder), rank_(rank), block_(block) {}

    // The `nth` channel from this rank to `peer`, as this block knows it.
    std::int32_t channel(ChannelKind kind, std::int32_t peer, int nth = 0) const;
    Operand remote(ChannelKind kind, std::int32_t peer, BufferKind buffer, std::int32_t index,
                   std::int32_t size = 1) const;
    // A multicast group of all ranks over `buffer`.
    Operand group(BufferKind buffer, std::int32_t index, std::int32_t size = 1) const;

    Operation& add(Operation op) const;
    std::vector<Operation>& operations() const { return own().operations; }
    const Block& nop() const;
    const Block& signal(std::int32_t peer, int nth = 0, OpKind kind = OpKind::kSignal) const;
    const Block& wait(std::int32_t peer, int nth = 0, OpKind kind = OpKind::kWait) const;
    const Block& port_signal(std::int32_t peer, int nth = 0) const;
    const Block& port_wait(std::int32_t peer, int nth = 0) const;
    const Block& flush(std::int32_t peer, int nth = 0) const;
    const Block& barrier(std::int32_t id, std::int32_t blocks) const;
    const Block& acquire(std::int32_t semaphore) const;
    const Block& release(std::int32_t semaphore) const;
    // Operations without a channel: copy, re, cpkt, upkt, repkt …
    const Block& move(OpKind kind, std::vector<Operand> sources, std::vector<Operand> destinations) const;
    // … and through memory channels.
    const Block& move_memory(OpKind kind, std::vector<Operand> sources, std::vector<Operand> destinations) const;
    const Block& copy(Operand source, Operand destination) const;
    const Block& put(std::int32_t peer, Operand source, BufferKind buffer, std::int32_t index) const;
    const Block& put_port(OpKind kind, std::int32_t peer, Operand source, BufferKind buffer, std::int32_t index,
                          int nth = 0) const;

   private:
    ThreadBlock& own() const { return builder_->plan.ranks[rank_].blocks[block_]; }
    const Block& count(OpKind kind, ChannelKind channel, std::int32_t peer, int nth) const;

    PlanBuilder* builder_;
    std::int32_t rank_;
    std::int32_t block_;
  };

  // Thread block `block` of `rank`; made with those before it if it is not there.
  Block at(std::int32_t rank, std::int32_t block = 0);
};

// Right plans. Ring: `blocks` = 1; reduce-scatter by reading, then all-gather by writing.
Plan ring_all_reduce(std::int32_t ranks);
Plan all_pairs_all_gather(std::int32_t ranks);
Plan packet_all_reduce(std::int32_t ranks);
// Through ports: two thread blocks a rank share every operation, and one channel to each peer.
Plan port_packets_in_parts(std::int32_t ranks);
// Recursive doubling through scratch; `ranks` is a power of two.
Plan doubling_all_reduce(std::int32_t ranks);
// Binomial tree: reduce to rank 0, then broadcast.
Plan tree_all_reduce(std::int32_t ranks);

}  // namespace tutti::plan
