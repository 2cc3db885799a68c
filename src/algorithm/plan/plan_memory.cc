#include "algorithm/plan/plan_memory.h"

#include <cstring>
#include <utility>

#include "device/cpu/arena.h"

namespace tutti {

PlanMemory::PlanMemory(HostChannel& host, std::vector<executor::RankLayout> layouts, std::size_t shadow_bytes)
    : host_(host), shadow_bytes_(shadow_bytes) {
  for (executor::RankLayout& layout : layouts) ranks_.push_back({nullptr, layout});
}

PlanMemory::~PlanMemory() {
  Arena* arena = process_arena();
  if (own_ == nullptr || arena == nullptr) return;
  bool alone = !failed_;
  for (int rank = 0; rank < host_.ranks() && alone; ++rank) {
    alone = rank == host_.index() || host_.stepped(rank, StepLane::kDrained) >= ended_;
  }
  if (!alone) arena->quarantine(own_);
  arena->deallocate(own_);
}

Outcome PlanMemory::join(Deadline& deadline) noexcept {
  executor::RankMemory& own = ranks_[static_cast<std::size_t>(host_.index())];
  std::uint64_t place = kNotMapped;
  if (Arena* arena = process_arena(); arena != nullptr) {
    const std::size_t bytes = own.layout.total + shadow_bytes_;
    own_ = arena->allocate(bytes);
    if (own_ != nullptr) {
      std::memset(own_, 0, own.layout.total);
      place = arena->offset_of(own_, bytes);
    }
  }
  // All ranks' announcements of this call are verified, so nobody reads our staging area any more.
  std::memcpy(host_.stage(host_.index()), &place, sizeof place);
  ended_ = host_.step_base() + 1;
  host_.publish(StepLane::kFilled, ended_);
  if (Outcome outcome = host_.await_step_all(StepLane::kFilled, ended_, deadline); !outcome.ok()) return outcome;
  host_.advance_steps(1);
  bool all = true;
  for (int rank = 0; rank < host_.ranks(); ++rank) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, host_.stage(rank), sizeof theirs);
    all = all && theirs != kNotMapped;
    // Our own block too: ranks that are threads of one process then see each counter at one address, as sanitizers
    // must.
    ranks_[static_cast<std::size_t>(rank)].base = host_.arena(rank) + theirs;
  }
  return all ? kOkOutcome : Outcome{Status::kInternal, -1};
}

void PlanMemory::end_call() noexcept {
  ended_ = host_.step_base() + 1;
  host_.publish(StepLane::kDrained, ended_);
  host_.advance_steps(1);
}

}  // namespace tutti
