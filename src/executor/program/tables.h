// What of a plan does not depend on the message: who meets whom, which counter is whose, how much memory it needs.
//
// Every signal and wait of a plan goes through one counter: a 64-bit word on a cache line of its own in the memory of
// the rank that waits, written by one rank only. Counters rise for the life of the communicator; who signals and who
// waits each keep their own count of what has been sent and taken, so nothing is ever reset.
//
// Thread rule: const after construction, shared by the ranks of a process.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/rank_map.h"
#include "plan/links.h"
#include "plan/plan.h"
#include "plan/sizes.h"

namespace tutti::executor {

struct alignas(64) CounterWord {
  std::atomic<std::uint64_t> value;
};
static_assert(sizeof(CounterWord) == 64);

// Bytes of one rank's memory that its peers map: counters, then two halves of packets, then two of plain scratch (one
// of each without double scratch). Packets have a region of their own whose place does not follow the message, so that
// what an earlier message left there can only ever be an old packet.
struct RankLayout {
  std::size_t packets = 0;  // offset of the first half
  std::size_t packets_half = 0;
  std::size_t plain = 0;
  std::size_t plain_half = 0;
  std::size_t total = 0;
};

class Tables {
 public:
  // Of ranks that lie so, as many as the plan has; on one host if nothing is said. Throws InvalidArgument if the plan
  // does not hang together (plan/structure.h), Unsupported if it cannot run across these hosts.
  Tables(std::shared_ptr<const plan::Plan> plan, RankMap map);
  explicit Tables(const std::shared_ptr<const plan::Plan>& plan)
      : Tables(plan, RankMap::one_host(static_cast<int>(plan->ranks.size()))) {}

  const plan::Plan& plan() const noexcept { return *plan_; }
  const plan::Links& links() const noexcept { return links_; }
  const plan::Shape& shape() const noexcept { return shape_; }
  const plan::ScratchUse& scratch() const noexcept { return scratch_; }
  std::int32_t ranks() const noexcept { return static_cast<std::int32_t>(plan_->ranks.size()); }

  // The counter on which `rank` waits at its `channel`.
  std::uint32_t counter(plan::ChannelKind kind, std::int32_t rank, std::int32_t channel) const noexcept;
  std::uint32_t first_counter(std::int32_t rank) const noexcept { return first_[static_cast<std::size_t>(rank)]; }

  bool one_host() const noexcept { return map_.one_host(); }
  bool share_memory(std::int32_t a, std::int32_t b) const noexcept { return map_.together(a, b); }

  // Whether, on the host of `rank`, some rank reaches into another's buffer of this kind.
  bool reached(plan::BufferKind buffer, std::int32_t rank) const noexcept {
    return reached_[host(rank)][static_cast<std::size_t>(buffer)];
  }

  // For messages of up to `input_bytes` and `output_bytes` a rank block.
  RankLayout layout(std::int32_t rank, std::int64_t input_bytes, std::int64_t output_bytes) const;
  // Bytes of plain scratch of `rank` in one invocation, and of packets; both from Sizes.
  std::int64_t plain_bytes(const plan::Sizes& sizes, std::int32_t rank) const;
  std::int64_t packet_bytes(const plan::Sizes& sizes, std::int32_t rank) const;

 private:
  void note_reached();
  std::size_t host(std::int32_t rank) const noexcept { return static_cast<std::size_t>(map_.host_of(rank)); }

  std::shared_ptr<const plan::Plan> plan_;
  plan::Links links_;
  plan::Shape shape_;
  plan::ScratchUse scratch_;
  std::vector<std::uint32_t> first_;  // by rank, and their total
  RankMap map_;
  std::vector<std::array<bool, plan::kBufferKindCount>> reached_;  // by host
};

}  // namespace tutti::executor
