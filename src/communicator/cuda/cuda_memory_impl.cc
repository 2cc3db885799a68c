#include "communicator/cuda/cuda_memory_impl.h"

#include "tutti/device/port.cuh"

namespace tutti::cuda {
namespace {

// A channel's words, in each rank's memory, by peer: what the peer has signalled, then this rank's two counters.
constexpr std::size_t kWordsOfChannel = 3;
// A port's: what the peer's proxy has signalled, then how much of it was waited for.
constexpr std::size_t kWordsOfPort = 2;

}  // namespace

CudaMemoryImpl::CudaMemoryImpl(std::shared_ptr<GpuGroup> group, const std::string& name, std::size_t bytes,
                               const std::string& problem, std::function<void(const CudaMemoryImpl&)> freed)
    : group_(std::move(group)),
      freed_(std::move(freed)),
      bytes_(bytes),
      words_((bytes + 255) / 256 * 256),
      port_words_(words_ + 8 * kWordsOfChannel * device::kMaxRanks * kCudaChannels),
      memory_(group_->allocate("memory " + name, port_words_ + 8 * kWordsOfPort * device::kMaxRanks * kCudaPorts,
                               problem)) {}

CudaMemoryImpl::~CudaMemoryImpl() {
  freed_(*this);
  if (!number_) return;
  std::vector<std::uint32_t> ports;
  for (const auto& [pair, port] : ports_) ports.push_back(port);
  // Waits until this rank's copies from and to it are complete.
  group_->ports().proxy().remove(*number_, ports);
}

void CudaMemoryImpl::check_pair(const char* what, int peer, int index, int count) const {
  const DeviceWorld& world = group_->world();
  if (peer >= 0 && peer < world.size && peer != world.rank && index >= 0 && index < count) return;
  throw_error(ErrorKind::kInvalidArgument, std::string(what) + " " + std::to_string(index) + " to rank " +
                                               std::to_string(peer) + ": must be 0 to " + std::to_string(count - 1) +
                                               " and another rank");
}

device::MemoryChannel CudaMemoryImpl::channel(int peer, int index) const {
  const DeviceWorld& world = group_->world();
  check_pair("channel", peer, index, kCudaChannels);
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

// Under mutex_.
std::uint32_t CudaMemoryImpl::number_with_proxy() {
  if (!number_) {
    std::vector<std::byte*> data;
    for (int r = 0; r < group_->world().size; ++r) data.push_back(memory_->data(r));
    number_ = group_->ports().proxy().add_memory(std::move(data), bytes_);
  }
  return *number_;
}

std::uint32_t CudaMemoryImpl::port_memory() {
  const std::lock_guard lock(mutex_);
  return number_with_proxy();
}

device::PortChannel CudaMemoryImpl::port(int peer, int index) {
  check_pair("port", peer, index, kCudaPorts);
  const auto words = [&](int owner, int other) {
    return reinterpret_cast<std::uint64_t*>(memory_->data(owner) + port_words_) +
           kWordsOfPort * static_cast<std::size_t>(other * kCudaPorts + index);
  };
  const int rank = group_->world().rank;
  GpuPorts& ports = group_->ports();
  const std::lock_guard lock(mutex_);
  device::PortChannel channel = ports.channel(peer);
  channel.to_memory = channel.from_memory = number_with_proxy();
  // One entry a port for good: the proxy counts its signals.
  const auto [found, fresh] = ports_.try_emplace({peer, index}, 0);
  if (fresh) found->second = ports.proxy().add_port(peer, words(peer, rank));
  channel.port = found->second;
  channel.semaphore.inbound = words(rank, peer);
  channel.semaphore.seen = words(rank, peer) + 1;
  return channel;
}

}  // namespace tutti::cuda
