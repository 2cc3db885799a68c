// The mapped memory of one plan in one communicator: this rank's block and where its peers' blocks lie here.
//
// Ownership: the block belongs to this rank's arena. It is given back when no peer can touch it any more, else kept for
// the life of the process: the destructor waits a little for peers that end their last call. Thread rule: under the
// communicator's lock.
#pragma once

#include <cstddef>
#include <vector>

#include "algorithm/group_place.h"
#include "base/clock.h"
#include "base/outcome.h"
#include "channel/host_channel.h"
#include "executor/cpu/interpreter.h"

namespace tutti {

class PlanMemory {
 public:
  // `layouts` by rank; `shadow_bytes` lie behind each. `world` outlives this.
  PlanMemory(const GroupPlace& world, std::vector<executor::RankLayout> layouts, std::size_t shadow_bytes);
  ~PlanMemory();
  PlanMemory(const PlanMemory&) = delete;
  PlanMemory& operator=(const PlanMemory&) = delete;

  // Takes the block and exchanges places. All ranks of the host call it in the same call, once; kExhausted on all of
  // them, with one that has no room in its arena. A bad outcome's peer is an index on the host.
  Outcome join(Deadline& deadline) noexcept;

  // By rank; valid after join(), null for ranks of other hosts.
  const std::vector<executor::RankMemory>& ranks() const noexcept { return ranks_; }
  std::byte* shadow(int rank) const noexcept {
    const executor::RankMemory& memory = ranks_[static_cast<std::size_t>(rank)];
    return memory.base + memory.layout.total;
  }

  // This rank has ended a call; peers may still be in it.
  void end_call() noexcept;
  void fail() noexcept { failed_ = true; }

 private:
  Outcome exchange(std::uint64_t place, Deadline& deadline) noexcept;

  const GroupPlace& world_;
  std::vector<executor::RankMemory> ranks_;
  std::size_t shadow_bytes_;
  void* own_ = nullptr;
  std::size_t own_bytes_ = 0;
  std::uint64_t ended_ = 0;  // the step that says that a rank has ended its last call
  bool failed_ = false;
};

}  // namespace tutti
