#include "algorithm/cuda/peer_copies.h"

#include "algorithm/cuda/launch_args.h"

namespace tutti::cuda {

bool copy_engines_can(const Call& call, int size) noexcept {
  if (size < 2 || call.uneven || call.input.pointers != nullptr || call.output.pointers != nullptr) return false;
  switch (call.collective) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
    case Collective::kBroadcast:
    case Collective::kScatter:
    case Collective::kGather:
      return agreed_bytes(call, size) > 0;
    case Collective::kAllReduce: {
      const std::size_t bytes = agreed_bytes(call, size);
      // A factor of its own a rank is applied by kernels that read one input only.
      return bytes > 0 && bytes % (16 * static_cast<std::size_t>(size)) == 0 && call.op != ReduceOp::kPremulSum;
    }
    default:
      return false;
  }
}

std::vector<PeerCopy> peer_copies(const Call& call, int rank, int size, std::byte* const* inputs,
                                  std::byte* const* outputs) {
  const std::size_t bytes = agreed_bytes(call, size);
  const auto in = [&](int owner, int block) { return inputs[owner] + static_cast<std::size_t>(block) * bytes; };
  const auto out = [&](int owner, int block) { return outputs[owner] + static_cast<std::size_t>(block) * bytes; };
  const bool root = rank == call.root;
  std::vector<PeerCopy> copies;
  const auto add = [&](int peer, std::byte* to, const std::byte* from, std::size_t size_of_copy) {
    if (to != from) copies.push_back({peer, to, from, size_of_copy});  // else in place: there already
  };
  // Each rank starts with another peer: no rank's incoming link is everybody's first.
  for (int d = 1; d <= size; ++d) {
    const int peer = (rank + d) % size;
    switch (call.collective) {
      case Collective::kAllGather:
        add(peer, out(peer, rank), in(rank, 0), bytes);
        break;
      case Collective::kAllToAll:
        add(peer, out(peer, rank), in(rank, peer), bytes);
        break;
      case Collective::kBroadcast:
        if (root) add(peer, out(peer, 0), in(rank, 0), bytes);
        break;
      case Collective::kScatter:
        if (root) add(peer, out(peer, 0), in(rank, peer), bytes);
        break;
      case Collective::kGather:
        if (root) add(peer, out(rank, peer), in(peer, 0), bytes);
        break;
      case Collective::kAllReduce: {
        const std::size_t chunk = bytes / static_cast<std::size_t>(size);
        const std::size_t mine = chunk * static_cast<std::size_t>(rank);
        if (peer != rank) add(peer, outputs[peer] + mine, outputs[rank] + mine, chunk);
        break;
      }
      default:
        break;
    }
  }
  return copies;
}

DirectArgs make_reduce_half(const Call& call, int rank, int size, int blocks, std::byte* const* inputs,
                            std::byte* const* outputs, std::uint32_t fingerprint) {
  DirectArgs args;
  args.bytes = args.chunk_bytes = agreed_bytes(call, size) / static_cast<std::size_t>(size);
  const std::size_t mine = args.bytes * static_cast<std::size_t>(rank);
  for (int p = 0; p < size; ++p) {
    args.input[p] = inputs[p];
    args.output[p] = outputs[p] + mine;
  }
  args.block_bytes = part_size(args.bytes, blocks);
  args.fingerprint = fingerprint;
  args.spec = {call.dtype, call.op, size, call.factor};
  return args;
}

}  // namespace tutti::cuda
