// Writes one rank of a plan: channels and remote buffers are entered into their tables when first used.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

// As operands name them.
inline constexpr auto kI = BufferKind::kInput;
inline constexpr auto kO = BufferKind::kOutput;
inline constexpr auto kS = BufferKind::kScratch;

class RankWriter {
 public:
  explicit RankWriter(Rank& rank) : rank_(rank) {}

  // What follows is of this thread block, and by channels of its own.
  void begin_block();

  void nop();
  void signal(const std::vector<std::int32_t>& peers, OpKind kind = OpKind::kSignal);
  void wait(const std::vector<std::int32_t>& peers);

  // Says to `peers` that this rank has entered the call, and waits for the same of them: they write into each other.
  void enter(const std::vector<std::int32_t>& peers) { enter(peers, peers); }
  void enter(const std::vector<std::int32_t>& writers, const std::vector<std::int32_t>& targets);

  struct Remote {
    std::int32_t rank = 0;
    BufferKind buffer = BufferKind::kInput;
    std::int32_t index = 0;
  };
  // Operations on `size` chunks: local sources, a local destination where the kind has one, then remote ones.
  void move(OpKind kind, std::int32_t size, const std::vector<Operand>& sources, const std::vector<Operand>& local,
            const std::vector<Remote>& remote);

 private:
  ThreadBlock& block() { return rank_.blocks.back(); }
  std::int32_t channel(std::int32_t peer);
  std::int32_t remote_buffer(std::int32_t peer, BufferKind buffer);

  Rank& rank_;
  std::size_t first_channel_ = 0;  // of this block
};

inline Operand chunks_at(BufferKind buffer, std::int32_t index) {
  return {Operand::Place::kLocal, buffer, 0, index, 1};
}

}  // namespace tutti::plan
