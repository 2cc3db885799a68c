#include "aten/cuda_side.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "interpreter/without_python.h"

namespace tutti::face {
namespace {

// Of high priority: what others wait for goes before what only this rank computes.
c10::Stream side_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

}  // namespace

CudaSide::~CudaSide() {
  group_.reset();
  // A message may have to drop tensors of Python's, or run its callbacks, before its thread ends.
  without_python([this] { devices_.reset(); });
}

const CudaLane& CudaSide::group(c10::Device device) {
  const StreamCommunicatorPtr& communicator = devices_->group(device.index());
  // acquire: pairs with the release below.
  if (const CudaLane* lane = made_group_.load(std::memory_order_acquire)) return *lane;
  // Not under the lock: the first use of the pool makes streams.
  CudaLane lane{communicator, side_stream(device), events_};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!group_.has_value()) group_.emplace(std::move(lane));
  // release: publishes the lane to those who take no lock.
  made_group_.store(&*group_, std::memory_order_release);
  return *group_;
}

c10::Stream CudaSide::message_stream(c10::Device device, int peer, bool send) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = message_streams_.find({peer, send});
    if (found != message_streams_.end()) return found->second;
  }
  const c10::Stream stream = side_stream(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  return message_streams_.try_emplace({peer, send}, stream).first->second;
}

// Messages that are still queued hold their tensors, so nobody asks for an order after them.
void CudaSide::order_after_calls(const c10::Stream& stream) const {
  std::vector<c10::Stream> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_.has_value()) streams.push_back(group_->stream);
    for (const auto& [key, side] : message_streams_) streams.push_back(side);
  }
  for (const c10::Stream& side : streams) CudaEvent(events_, side).block(stream);
}

}  // namespace tutti::face
