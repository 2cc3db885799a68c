// A plan on one rank's GPU, as far as the host prepares it: how much memory it needs, what lies there, and its records
// for a message. Knows nothing of CUDA: who has the memory uploads and launches.
//
// Memory that peers map, of one size on all ranks: counters and scratch (RankLayout), then shadows of the rank's own
// input and output. A buffer that only its own rank touches is the caller's tensor, and so is one that peers reach
// into, if all ranks' tensors are mapped (DeviceVariant::mapped_input and mapped_output); else it is a shadow. Three
// cases more take a shadow: a buffer that this rank's call does not have (a root's alone), an input that lies in the
// output when the plan is not made for that, and the input of a plan that writes it. What has a shadow is copied by the
// plan's own thread blocks, before the plan's first operation and after its last, with a barrier of all blocks between.
// An average is divided there, too.
//
// A tensor that peers reach into is touched only by ranks that make the same call: a word is raised once the headers of
// all ranks have come, and every block awaits it before it touches a peer's tensor. It does so once in each call with
// mapped tensors, also if it touches none: so its count keeps up with the word.
//
// A plan that is in place has one buffer, the larger one, and the other is a block of it (or it).
//
// A message is run as segments, each an invocation of its own: the largest that memory allows. A plan without scratch
// and loops runs a message in mapped tensors as one.
//
// Thread rule: const after construction.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "executor/cuda/device_program.h"
#include "executor/program/program.h"
#include "executor/program/tables.h"
#include "plan/plan.h"

namespace tutti::executor {

struct DeviceLimits {
  int blocks = 1;                  // of a kernel, all at once
  std::size_t bytes = 16UL << 20;  // of memory that peers map
  std::string why_blocks{};        // "the GPU has room for ...": why not more; may be empty
};

// What the records of a rank depend on beside the plan.
struct DeviceVariant {
  std::size_t bytes = 0;  // of a rank block of this segment
  bool has_input = true;  // this rank's call has one
  bool has_output = true;
  bool input_in_place = false;  // of a plan in place: the input lies where the plan has it
  bool overlaps = false;        // of another plan: input and output share bytes
  bool averages = false;        // divide what comes out
  bool mapped_input = false;    // PlanArgs::peers has all ranks'; only where the plan maps_input()
  bool mapped_output = false;   // likewise

  bool mapped() const noexcept { return mapped_input || mapped_output; }
  std::strong_ordering operator<=>(const DeviceVariant&) const = default;
};

// Where things are, as the rank's device sees them.
struct DeviceMemory {
  std::vector<std::byte*> ranks;  // by rank: memory_bytes() each
  std::byte* state = nullptr;     // the rank's own, with state() in it at first
};

struct DeviceRecords {
  std::vector<DeviceOp> ops;
  std::vector<Position> positions;  // of each, in the plan; block -1: what is done around the plan
  std::vector<DeviceOperand> operands;
  std::vector<DeviceBlock> blocks;
};

class DevicePlan {
 public:
  static constexpr int kMostThreads = 512;  // workers that the kernels are compiled for

  // Throws Unsupported with reason and number if a GPU cannot run the plan, and what Tables and Program throw.
  DevicePlan(std::shared_ptr<const plan::Plan> plan, std::int32_t rank, const DeviceLimits& limits);

  const plan::Plan& plan() const noexcept { return tables_.plan(); }
  std::int32_t rank() const noexcept { return rank_; }
  std::size_t memory_bytes() const noexcept { return memory_bytes_; }    // the same on all ranks
  std::size_t segment_bytes() const noexcept { return segment_bytes_; }  // of a rank block, at most; the same too
  int blocks() const noexcept { return static_cast<int>(blocks_); }
  int threads() const noexcept { return threads_of(plan()); }
  static int threads_of(const plan::Plan& plan) noexcept;  // whole warps, without the control warp
  // Whether peers reach into tensors of callers, if those are mapped. The same on all ranks.
  bool maps_input() const noexcept { return !plan().in_place && reached(0) && !plan().writes_input; }
  bool maps_output() const noexcept {
    return plan().in_place ? whole() == 1 && (reached(0) || reached(1)) : reached(1);
  }
  // Of such a call, which is the same on all ranks.
  std::size_t segment_bytes(const DeviceVariant& variant) const noexcept;
  std::uint32_t halves() const noexcept { return plan().double_scratch ? 2 : 1; }

  // The rank's own memory: invocations by block (first), slots (at slots_offset()), words.
  std::vector<std::byte> state() const;
  std::size_t slots_offset() const noexcept;
  // Of PeerBuffers::agreed; only of a plan that maps_input() or maps_output().
  std::size_t agreed_offset() const { return words_offset() + kLine * words_.at({Use::kAgree, 0, 0}); }

  // Throws what Program throws.
  DeviceRecords records(const DeviceVariant& variant, const DeviceMemory& memory) const;

 private:
  friend class Lowering;

  static constexpr std::size_t kLine = 64;  // of a word or an invocation count: blocks poll them apart

  // Who counts what: (thread block, use, channel or semaphore or barrier, other thread block).
  enum class Use : std::uint8_t { kSignal, kPostSignal, kWait, kRelease, kAcquire, kArrive, kMeet, kAgree };
  using SlotKey = std::tuple<std::uint32_t, Use, std::uint32_t, std::uint32_t>;

  bool reached(int side) const noexcept {
    return tables_.reached(side == 0 ? plan::BufferKind::kInput : plan::BufferKind::kOutput, rank_);
  }
  std::uint32_t around() const noexcept { return static_cast<std::uint32_t>(meets_.size()) - 1; }
  // Of a plan in place: the side that holds both.
  int whole() const noexcept { return rank_blocks(1) >= rank_blocks(0) ? 1 : 0; }
  std::size_t memory_for(std::size_t bytes) const;
  std::size_t choose_segment(std::size_t most) const;
  void shorten_segment();
  void check_reductions(const Program& program) const;
  void note_uses(const Program& program);
  void add_slot(const SlotKey& key, std::uint64_t initial = 0);
  void add_word(Use use, std::uint32_t id, std::uint32_t block, std::uint64_t initial = 0);
  std::size_t words_offset() const noexcept;

  std::size_t rank_blocks(int side) const noexcept {
    return static_cast<std::size_t>(tables_.shape().blocks[static_cast<std::size_t>(side)]);
  }
  static std::size_t stride(std::size_t bytes) noexcept { return (bytes + 127) / 128 * 128; }
  std::size_t shadow_bytes(std::size_t bytes) const noexcept {
    return (rank_blocks(0) + rank_blocks(1)) * stride(bytes);
  }

  Tables tables_;
  std::int32_t rank_;
  std::size_t segment_bytes_ = 0;
  std::size_t memory_bytes_ = 0;
  bool any_size_ = false;            // it has neither scratch nor loops
  std::vector<RankLayout> layouts_;  // by rank
  std::size_t blocks_ = 1;
  // By barrier of the plan: its thread blocks. Then that of all blocks around the plan.
  std::vector<std::vector<std::uint32_t>> meets_;
  std::map<SlotKey, std::uint32_t> slots_;
  std::vector<std::uint64_t> initial_slots_;
  std::map<std::tuple<Use, std::uint32_t, std::uint32_t>, std::uint32_t> words_;  // semaphores, barriers by block
  std::vector<std::uint64_t> initial_words_;
};

}  // namespace tutti::executor
