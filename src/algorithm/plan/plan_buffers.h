// Where the input and output of one call lie for a plan: in the tensors, or a segment at a time in shadows of them.
//
// A buffer that other ranks of the host reach into must be where they can: in the tensor if all ranks' tensors are
// mapped, else in the shadows of all ranks. Ranks decide alike, from the announcements; with several hosts there are
// none, and such a buffer is a shadow always. A buffer that only its own rank touches is the
// tensor. Three cases more take a shadow: a buffer that this rank's call does not have (a root's alone), an input
// that lies in the output when the plan is not made for that, and the input of a plan that writes it.
//
// Segments take their shadows in turn from a ring of several: by the time a shadow is written again, the peers' caches
// have lost it, so the stores need not wait for them (see SharedWriter).
//
// A plan that is in place has one buffer, the larger one, and the other is a block of it (or it). Where that is the
// input, it is a shadow always: the caller's input is not ours to write.
//
// Thread rule: lives in one call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "algorithm/algorithm.h"
#include "algorithm/plan/plan_memory.h"
#include "executor/program/tables.h"

namespace tutti {

// What of this a plan decides once.
struct PlanGeometry {
  const executor::Tables* tables = nullptr;
  std::size_t segment_bytes = 0;  // of a rank block: the most that one invocation works on through shadows

  std::size_t blocks(int side) const noexcept {
    return static_cast<std::size_t>(tables->shape().blocks[static_cast<std::size_t>(side)]);
  }
  // One rank's shadows of a piece of `bytes` of each rank block.
  std::size_t shadow_bytes(std::size_t bytes) const noexcept { return (blocks(0) + blocks(1)) * stride(bytes); }
  static std::size_t stride(std::size_t bytes) noexcept { return (bytes + 127) / 128 * 128; }
};

class PlanBuffers {
 public:
  PlanBuffers(const PlanGeometry& geometry, const PlanMemory& memory, const Call& call, CallContext& context) noexcept;

  // Bytes of a rank block.
  std::size_t block_bytes() const noexcept { return block_bytes_; }
  // No rank can be using a shadow, so a message need not be cut for its sake. All ranks say the same: whether a rank
  // shadows a buffer that only it touches is not known to the others, so that it may is what counts.
  bool direct() const noexcept { return !shadow_all_[0] && !shadow_all_[1] && !may_shadow_mine_; }

  // Before the invocation on bytes [begin, begin + bytes) of each rank block, whose shadows lie `shadow` bytes from the
  // first; and after it.
  void load(std::size_t begin, std::size_t bytes, std::size_t shadow) noexcept;
  void store() noexcept;

  // Of the segment that was loaded.
  std::byte* address(const executor::BaseRef& ref) const noexcept;

 private:
  static constexpr int kIn = 0;
  static constexpr int kOut = 1;

  bool rooted(int side) const noexcept;
  bool has(int side) const noexcept { return !rooted(side) || context_.rank == call_.root; }
  bool mapped_everywhere(int side) const noexcept;
  bool overlaps_anywhere() const noexcept;
  bool overlaps_here() const noexcept;
  std::uint64_t place(int side, int rank) const noexcept;
  std::byte* at(int side, int rank, int block) const noexcept;
  std::byte* user(int side, int block) const noexcept {
    return (side == kIn ? call_.input : call_.output).data(block) + begin_;
  }
  void place_one_buffer() noexcept;
  void place_two_buffers() noexcept;

  const PlanGeometry& geometry_;
  const PlanMemory& memory_;
  const Call& call_;
  CallContext& context_;
  const bool in_place_;
  std::size_t block_bytes_ = 0;
  std::size_t begin_ = 0;  // the segment at hand
  std::size_t bytes_ = 0;
  std::size_t shadow_ = 0;
  int whole_ = kOut;                   // in place: the side that holds both
  std::array<bool, 2> shadow_all_{};   // of all ranks
  bool may_shadow_mine_ = false;       // on any rank
  std::array<bool, 2> shadow_mine_{};  // of this rank's own; nobody else reaches into it
};

}  // namespace tutti
