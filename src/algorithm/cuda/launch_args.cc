#include "algorithm/cuda/launch_args.h"

#include <algorithm>

namespace tutti::cuda {
namespace {

// Whether this rank sends anything to others in the collective, and whether it gets anything.
bool sends(const Call& call, int rank) { return !traits_of(call.collective).root_reads || rank == call.root; }
bool receives(const Call& call, int rank) { return !traits_of(call.collective).root_writes || rank == call.root; }
bool sends_list(const Call& call) { return traits_of(call.collective).input_blocks; }

ReduceSpec spec_of(const Call& call, int size) { return {call.dtype, call.op, size, call.factor, call.device_factor}; }

// Of each lane, its messages from the `first`-th to before the `end`-th.
template <class Args>
Args fill(const std::vector<MessageRequest>& requests, int channels, std::size_t first, std::size_t end) {
  Args args;
  args.channels = channels;
  int placed = 0;
  for (const bool send : {true, false}) {
    for (int peer = 0; peer < device::kMaxRanks; ++peer) {
      MessageLane lane{peer, send ? 1 : 0, placed, 0};
      std::size_t position = 0;
      for (const MessageRequest& r : requests) {
        if (r.send != send || r.peer != peer) continue;
        if (position >= first && position < end) {
          args.message[placed++] = {r.data, r.bytes, r.fingerprint, 0};
          ++lane.count;
        }
        ++position;
      }
      if (lane.count > 0) args.lane[args.lanes++] = lane;
    }
  }
  return args;
}

}  // namespace

bool runs_as_messages(const Call& call) noexcept {
  return call.uneven && (call.collective == Collective::kAllToAll || call.collective == Collective::kGather ||
                         call.collective == Collective::kScatter);
}

std::size_t agreed_bytes(const Call& call, int size) noexcept {
  const auto largest = [&](const Blocks& blocks) {
    std::size_t most = 0;
    for (int r = 0; r < size; ++r) most = std::max(most, blocks.size(r));
    return most;
  };
  switch (call.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kScatter:
      return call.output.size(0);
    case Collective::kReduceScatter:
      return call.uneven ? largest(call.input) : call.output.size(0);
    case Collective::kAllGather:
      return call.uneven ? largest(call.output) : call.input.size(0);
    default:
      return call.input.size(0);
  }
}

ExchangeArgs make_exchange(const Call& call, int rank, int size, const Choice& choice, std::uint32_t fingerprint) {
  ExchangeArgs args;
  args.block_bytes = part_size(agreed_bytes(call, size), choice.blocks);
  args.piece_bytes = choice.piece_bytes;
  args.fingerprint = fingerprint;
  args.spec = spec_of(call, size);
  const Collective c = call.collective;
  if (c == Collective::kBarrier) return args;
  const bool copies = !reduces(c);
  for (int p = 0; p < size; ++p) {
    if (sends(call, rank) && receives(call, p)) {
      const int block = sends_list(call) ? p : 0;
      args.send[p] = call.input.data(block);
      args.send_bytes[p] = call.input.size(block);
    }
    if (copies && sends(call, p) && receives(call, rank)) {
      const bool one_block = c == Collective::kBroadcast || c == Collective::kScatter;
      args.receive[p] = call.output.data(one_block ? 0 : p);
      args.receive_bytes[p] = call.output.size(one_block ? 0 : p);
    }
  }
  if (!copies && receives(call, rank)) {
    args.output = call.output.data(0);
    args.output_bytes = call.output.size(0);
  }
  return args;
}

std::optional<UniformArgs> make_uniform(const Call& call, int size, const Choice& choice, std::uint32_t fingerprint) {
  if (call.uneven || call.input.pointers != nullptr || call.output.pointers != nullptr) return std::nullopt;
  UniformArgs args;
  args.input = call.input.base;
  args.output = call.output.base;
  args.bytes = agreed_bytes(call, size);
  switch (call.collective) {
    case Collective::kAllReduce:
      break;
    case Collective::kReduceScatter:
      args.in_stride = args.bytes;
      break;
    case Collective::kAllGather:
      args.out_stride = args.bytes;
      break;
    case Collective::kAllToAll:
      args.in_stride = args.out_stride = args.bytes;
      break;
    default:
      return std::nullopt;
  }
  args.block_bytes = part_size(args.bytes, choice.blocks);
  args.fingerprint = fingerprint;
  args.spec = spec_of(call, size);
  return args;
}

TwoShotArgs make_two_shot(const Call& call, int size, const Choice& choice, std::uint32_t fingerprint) {
  TwoShotArgs args;
  args.input = call.input.data(0);
  args.output = call.output.data(0);
  args.bytes = call.input.size(0);
  args.chunk_bytes = part_size(args.bytes, size);
  args.block_bytes = part_size(args.chunk_bytes, choice.blocks);
  args.piece_bytes = choice.piece_bytes;
  args.fingerprint = fingerprint;
  args.spec = spec_of(call, size);
  return args;
}

DirectArgs make_direct(const Call& call, int size, int blocks, std::byte* const* inputs, std::byte* const* outputs,
                       std::uint32_t fingerprint) {
  DirectArgs args;
  for (int p = 0; p < size; ++p) {
    args.input[p] = inputs[p];
    args.output[p] = outputs[p];
  }
  args.bytes = agreed_bytes(call, size);
  args.chunk_bytes = call.collective == Collective::kAllReduce ? part_size(args.bytes, size) : args.bytes;
  args.block_bytes = part_size(args.chunk_bytes, blocks);
  args.fingerprint = fingerprint;
  args.spec = spec_of(call, size);
  return args;
}

FewMessages make_few_messages(const std::vector<MessageRequest>& requests, int channels) {
  return fill<FewMessages>(requests, channels, 0, requests.size());
}

std::vector<ManyMessages> make_many_messages(const std::vector<MessageRequest>& requests, int channels) {
  if (requests.size() <= kManyMessages) return {fill<ManyMessages>(requests, channels, 0, requests.size())};
  std::vector<ManyMessages> kernels;
  for (std::size_t first = 0;; first += kMessagesOfALane) {
    ManyMessages args = fill<ManyMessages>(requests, channels, first, first + kMessagesOfALane);
    if (args.lanes == 0) return kernels;
    kernels.push_back(args);
  }
}

std::vector<MessageRequest> messages_of(const Call& call, int rank, int size, std::uint32_t fingerprint) {
  std::vector<MessageRequest> requests;
  const bool one_output = call.collective == Collective::kScatter;
  const bool one_input = call.collective == Collective::kGather;
  for (int d = 1; d < size; ++d) {
    const int to = (rank + d) % size, from = (rank + size - d) % size;
    if (sends(call, rank) && receives(call, to)) {
      const int block = one_input ? 0 : to;
      requests.push_back({true, call.input.data(block), call.input.size(block), to, fingerprint});
    }
    if (sends(call, from) && receives(call, rank)) {
      const int block = one_output ? 0 : from;
      requests.push_back({false, call.output.data(block), call.output.size(block), from, fingerprint});
    }
  }
  return requests;
}

}  // namespace tutti::cuda
