#include "aten/cuda_events.h"

#include <algorithm>
#include <utility>

#include "base/release.h"
#include "tutti/cuda/capture.h"

namespace tutti::face {

CudaEvents::~CudaEvents() { left_by_child(unused_); }

// The one that was given back last: of the devices that there may be, a group has calls on one.
c10::Event CudaEvents::take(c10::DeviceIndex device) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(unused_.rbegin(), unused_.rend(),
                                  [device](const c10::Event& event) { return event.device_index() == device; });
  if (found == unused_.rend()) return c10::Event(c10::DeviceType::CUDA);
  std::swap(*found, unused_.back());
  c10::Event taken = std::move(unused_.back());
  unused_.pop_back();
  return taken;
}

void CudaEvents::give_back(c10::Event event) noexcept {
  if (left_by_child(event)) return;  // where another thread of the parent's may have had the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  if (unused_.size() < kKept) unused_.push_back(std::move(event));
}

bool CudaEvent::query() const {
  bool over = false;
  cuda_beside_captures([&] { over = event_.query(); });
  return over;
}

}  // namespace tutti::face
