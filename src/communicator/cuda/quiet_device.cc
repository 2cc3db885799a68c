#include "communicator/cuda/quiet_device.h"

#include <algorithm>
#include <vector>

#include "device/cuda/leftovers.h"

namespace tutti::cuda {

// Never destroyed: communicators may be at exit.
QuietDevice& QuietDevice::of_process() {
  static QuietDevice* const instance = new QuietDevice;
  return *instance;
}

void QuietDevice::add(const Member* member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
}

void QuietDevice::remove(const Member* member) {
  const std::lock_guard lock(mutex_);
  std::erase(members_, member);
}

// relaxed, both: a hint whether it is worth to look; what is looked at is guarded by the members' mutexes.
void QuietDevice::count(int more) noexcept { waiting_.fetch_add(more, std::memory_order_relaxed); }

bool QuietDevice::any_waits() const noexcept { return waiting_.load(std::memory_order_relaxed) > 0; }

void QuietDevice::load_if_quiet(const Member& asking) {
  // Another thread that is here may be waiting for nothing, but it may hold what this one would try.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  std::vector<std::unique_lock<std::mutex>> held;
  for (const Member* member : members_) {
    if (member->device != asking.device) continue;
    if (member != &asking && !held.emplace_back(*member->calls, std::try_to_lock)) return;
    if (!member->idle()) return;
  }
  for (const Member* member : members_) {
    if (member->device == asking.device) member->load();
  }
}

void QuietDevice::give_back_if_quiet() {
  const LeftoverCount kept = leftovers();
  if (kept.things == 0) return;
  std::unique_lock lock(mutex_, std::defer_lock);
  std::vector<std::unique_lock<std::mutex>> held;
  if (kept.things <= kMostLeftovers && kept.bytes <= kMostLeftoverBytes) {
    if (!lock.try_lock()) return;
    for (const Member* member : members_) {
      if (!held.emplace_back(*member->calls, std::try_to_lock) || !member->idle()) return;
    }
  }
  give_back_leftovers();
}

}  // namespace tutti::cuda
