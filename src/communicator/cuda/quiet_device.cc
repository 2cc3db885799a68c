#include "communicator/cuda/quiet_device.h"

#include <algorithm>

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

}  // namespace tutti::cuda
