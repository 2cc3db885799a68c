#include "communicator/cuda/cuda_memory_impl.h"

#include "algorithm/cuda/plan_exchange.h"
#include "tutti/device/channel.cuh"

namespace tutti::cuda {
namespace {

// Below this a call through scratch is faster: it has one barrier less.
constexpr std::size_t kLeastDirect = std::size_t{1} << 20;

// A channel's words, in each rank's memory, by peer: what the peer has signalled, then this rank's two counters.
constexpr std::size_t kWordsOfChannel = 3;

std::size_t offset_in(const CudaMemory& memory, int rank, const std::byte* data, std::size_t bytes, const char* what) {
  const std::byte* base = memory.data(rank);
  if (data < base || data + bytes > base + memory.bytes()) {
    throw_error(ErrorKind::kInvalidArgument, std::string("the ") + what + " does not lie in the given memory");
  }
  return static_cast<std::size_t>(data - base);
}

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

std::optional<DirectPlace> place_of(const Call& call, int rank, int size, const CudaMemory& memory) {
  const bool direct = call.collective == Collective::kAllReduce || call.collective == Collective::kReduceScatter ||
                      call.collective == Collective::kAllGather;
  const std::size_t bytes = agreed_bytes(call, size);
  const auto n = static_cast<std::size_t>(size);
  const std::size_t in = call.collective == Collective::kReduceScatter ? n * bytes : bytes;
  const std::size_t out = call.collective == Collective::kAllGather ? n * bytes : bytes;
  if (!direct || size == 1 || call.uneven || call.op == ReduceOp::kPremulSum || std::max(in, out) < kLeastDirect ||
      call.input.pointers != nullptr || call.output.pointers != nullptr) {
    return std::nullopt;
  }
  DirectPlace place;
  place.input = offset_in(memory, rank, call.input.base, in, "input");
  place.output = offset_in(memory, rank, call.output.base, out, "output");
  // What peers touch must lie alike: the inputs of a reduction, the outputs of an all-reduce and an all-gather.
  std::uint64_t offsets = call.collective == Collective::kAllGather ? 0 : place.input * 31 + 1;
  if (call.collective != Collective::kReduceScatter) offsets = offsets * 31 + place.output;
  place.number = static_cast<std::uint32_t>(offsets ^ offsets >> 32);
  return place;
}

}  // namespace tutti::cuda
