#include "torchcomms/window_group.h"

namespace tutti::torchcomms {

Group WindowGroup::group() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_;
}

c10d::Backend* WindowGroup::enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (group_ != nullptr) ++uses_;
  return group_.get();
}

void WindowGroup::leave() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--uses_ == 0) unused_.notify_all();
}

void WindowGroup::end() {
  Group last;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    last = std::exchange(group_, nullptr);
    unused_.wait(lock, [this] { return uses_ == 0; });
  }
  if (last != nullptr) last->shutdown();
}

}  // namespace tutti::torchcomms
