#include "aten/cuda_side.h"

#include "interpreter/without_python.h"

namespace tutti::face {

CudaSide::~CudaSide() {
  group_.reset();
  // A message may have to drop tensors of Python's, or run its callbacks, before its thread ends.
  without_python([this] { devices_.reset(); });
}

const CudaLane& CudaSide::group(c10::Device device) {
  const StreamCommunicatorPtr& communicator = devices_->group(device.index());
  // acquire: pairs with the release below.
  if (const CudaLane* lane = made_group_.load(std::memory_order_acquire)) return *lane;
  auto stream = std::make_unique<const SideStream>(device);  // not under the lock: it may wait
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!group_.has_value()) {
    group_stream_ = std::move(stream);
    group_.emplace(CudaLane{communicator, group_stream_->get(), events_});
  }
  // release: publishes the lane to those who take no lock.
  made_group_.store(&*group_, std::memory_order_release);
  return *group_;
}

c10::Stream CudaSide::message_stream(c10::Device device, int peer, bool send) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = message_streams_.find({peer, send});
    if (found != message_streams_.end()) return found->second->get();
  }
  auto stream = std::make_unique<const SideStream>(device);  // as above
  const std::lock_guard<std::mutex> lock(mutex_);
  return message_streams_.try_emplace({peer, send}, std::move(stream)).first->second->get();
}

// Messages that are still queued hold their tensors, so nobody asks for an order after them.
void CudaSide::order_after_calls(const c10::Stream& stream) const {
  std::vector<c10::Stream> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_.has_value()) streams.push_back(group_->stream);
    for (const auto& [key, side] : message_streams_) streams.push_back(side->get());
  }
  for (const c10::Stream& side : streams) CudaEvent(events_, side).block(stream);
}

}  // namespace tutti::face
