#include "communicator/cuda/cuda_memory_impl.h"

#include "tutti/device/channel.cuh"

namespace tutti::cuda {
namespace {

// A channel's words, in each rank's memory, by peer: what the peer has signalled, then this rank's two counters.
constexpr std::size_t kWordsOfChannel = 3;

}  // namespace

CudaMemoryImpl::CudaMemoryImpl(std::shared_ptr<GpuGroup> group, Store& store, const std::string& name,
                               std::size_t bytes)
    : group_(std::move(group)),
      bytes_(bytes),
      words_((bytes + 255) / 256 * 256),
      memory_(group_->allocate(store, name, words_ + 8 * kWordsOfChannel * device::kMaxRanks * kCudaChannels)) {}

device::MemoryChannel CudaMemoryImpl::channel(int peer, int index) const {
  const DeviceWorld& world = group_->world();
  if (peer < 0 || peer >= world.size || peer == world.rank || index < 0 || index >= kCudaChannels) {
    throw_error(ErrorKind::kInvalidArgument, "channel " + std::to_string(index) + " to rank " + std::to_string(peer) +
                                                 ": must be 0 to " + std::to_string(kCudaChannels - 1) +
                                                 " and another rank");
  }
  const auto words = [&](int owner, int other) {
    return reinterpret_cast<std::uint64_t*>(memory_->data(owner) + words_) +
           kWordsOfChannel * static_cast<std::size_t>(other * kCudaChannels + index);
  };
  device::MemoryChannel channel;
  channel.control = world.control;
  channel.peer = peer;
  channel.local = memory_->data(world.rank);
  channel.remote = memory_->data(peer);
  channel.semaphore.remote = words(peer, world.rank);
  std::uint64_t* mine = words(world.rank, peer);
  channel.semaphore.inbound = mine;
  channel.semaphore.sent = mine + 1;
  channel.semaphore.seen = mine + 2;
  return channel;
}

}  // namespace tutti::cuda
