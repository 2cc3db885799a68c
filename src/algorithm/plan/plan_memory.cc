#include "algorithm/plan/plan_memory.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "device/cpu/arena.h"

namespace tutti {
namespace {

constexpr std::uint64_t kAlignment = 64;  // of all that an arena gives out

}  // namespace

PlanMemory::PlanMemory(const GroupPlace& world, std::vector<executor::RankLayout> layouts, std::size_t shadow_bytes)
    : world_(world), shadow_bytes_(shadow_bytes) {
  for (executor::RankLayout& layout : layouts) ranks_.push_back({nullptr, layout});
}

PlanMemory::~PlanMemory() {
  Arena* arena = process_arena();
  if (own_ == nullptr || arena == nullptr) return;
  const std::span<std::byte> lent(static_cast<std::byte*>(own_), own_bytes_);
  arena->take_back({&lent, 1}, true);  // no user's memory, whatever peers may still do with it
  if (failed_) {
    arena->quarantine(own_);
    arena->deallocate(own_);
    return;
  }
  // A peer may be in the last call still and read what lies here. It is about to end it, unless it is stopped: then the
  // block stays as it is. Quarantined, its pages would be given back, and the reader would find zeros.
  Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
  HostChannel* host = world_.host;
  for (int index = 0; host != nullptr && index < host->ranks(); ++index) {
    if (index != host->index() && !host->await_step(index, StepLane::kDrained, ended_, deadline).ok()) return;
  }
  arena->deallocate(own_);
}

Outcome PlanMemory::join(Deadline& deadline) noexcept {
  executor::RankMemory& own = ranks_[static_cast<std::size_t>(world_.rank)];
  std::uint64_t place = kNotMapped;
  if (Arena* arena = process_arena(); arena != nullptr) {
    own_bytes_ = own.layout.total + shadow_bytes_;
    own_ = arena->allocate(own_bytes_);
    if (own_ != nullptr) {
      std::memset(own_, 0, own.layout.total);
      place = arena->lend(own_, own_bytes_);
    }
  }
  if (world_.host == nullptr) {
    own.base = static_cast<std::byte*>(own_);
    return own_ != nullptr ? kOkOutcome : Outcome{Status::kExhausted, 0};
  }
  return exchange(place, deadline);
}

Outcome PlanMemory::exchange(std::uint64_t place, Deadline& deadline) noexcept {
  HostChannel& host = *world_.host;
  // The calls of all ranks have been compared, so nobody reads our staging area any more.
  std::memcpy(host.stage(host.index()), &place, sizeof place);
  ended_ = host.step_base() + 1;
  host.publish(StepLane::kFilled, ended_);
  if (Outcome outcome = host.await_step_all(StepLane::kFilled, ended_, deadline); !outcome.ok()) return outcome;
  int without = -1;
  for (int index = 0; index < host.ranks(); ++index) {
    std::uint64_t theirs = 0;
    std::memcpy(&theirs, host.stage(index), sizeof theirs);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler may not read there again instead
    // Our own block too: ranks that are threads of one process then see each counter at one address, as sanitizers
    // must.
    executor::RankMemory& memory = ranks_[static_cast<std::size_t>(world_.rank_at(index))];
    memory.base = host.in_arena(index, theirs, memory.layout.total + shadow_bytes_);
    if (theirs == kNotMapped) {
      without = index;
    } else if (memory.base == nullptr || theirs % kAlignment != 0) {
      return {Status::kCorrupt, index};
    }
  }
  // Nobody writes its place again before all have read it: another plan may be next.
  host.publish(StepLane::kFilled, ended_ + 1);
  if (Outcome outcome = host.await_step_all(StepLane::kFilled, ended_ + 1, deadline); !outcome.ok()) return outcome;
  host.advance_steps(2);
  return without < 0 ? kOkOutcome : Outcome{Status::kExhausted, without};
}

void PlanMemory::end_call() noexcept {
  if (world_.host == nullptr) return;
  ended_ = world_.host->step_base() + 1;
  world_.host->publish(StepLane::kDrained, ended_);
  world_.host->advance_steps(1);
}

}  // namespace tutti
