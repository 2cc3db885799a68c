// Kernels of a program's own, for tests: on the host as a GPU runs them, on CPU ranks, compiled by NVRTC.
#include <tutti/plugin/kernel.cuh>

namespace {

// By pieces, in two halves of scratch in turn.
template <class Team>
TUTTI_DEVICE bool scratch_all_gather(tutti::KernelContext<Team>& c) {
  const auto mine = c.share(c.block_bytes());
  const auto room = c.share(c.scratch_bytes() / 2);  // of this block, of each half
  c.copy(c.output(c.rank()) + mine.begin, c.input() + mine.begin, mine.bytes());
  std::uint64_t turn = 0;
  for (std::uint64_t begin = mine.begin; begin < mine.end; begin += room.bytes(), turn ^= 1) {
    const std::uint64_t piece = mine.end - begin < room.bytes() ? mine.end - begin : room.bytes();
    const std::uint64_t at = turn * (c.scratch_bytes() / 2) + room.begin;
    c.put(c.rank(), at, c.input() + begin, piece);
    if (!c.barrier()) return false;
    for (int d = 1; d < c.size(); ++d) {
      const int peer = (c.rank() + d) % c.size();
      c.copy(c.output(peer) + begin, c.scratch(peer) + at, piece);
    }
  }
  return true;
}

// One shot, by packets.
template <class Team>
TUTTI_DEVICE bool packet_all_reduce(tutti::KernelContext<Team>& c) {
  const auto mine = c.share(c.block_bytes());
  const std::uint64_t room = c.scratch_bytes() / c.size() / 16 * 16;
  for (int d = 1; d < c.size(); ++d) {
    const int peer = (c.rank() + d) % c.size();
    c.put_packets(peer, c.rank() * room + 2 * mine.begin, c.input() + mine.begin, mine.bytes());
  }
  std::byte* const out = c.output() + mine.begin;
  if (!c.reduce_packets(out, c.input() + mine.begin, 2 * mine.begin, room, mine.bytes())) return false;
  c.sync();
  c.divide(out, mine.bytes());
  return true;
}

// Through scratch, by signals to each peer.
template <class Team>
TUTTI_DEVICE bool signal_reduce_scatter(tutti::KernelContext<Team>& c) {
  const auto mine = c.share(c.block_bytes());
  const std::uint64_t room = c.scratch_bytes() / c.size() / 16 * 16;
  const std::byte* sources[tutti::kMostRanks] = {};
  for (int d = 1; d < c.size(); ++d) {
    const int peer = (c.rank() + d) % c.size();
    c.put(peer, c.rank() * room + mine.begin, c.input(peer) + mine.begin, mine.bytes());
    c.signal(peer);
  }
  for (int d = 1; d < c.size(); ++d) {
    if (!c.wait((c.rank() + d) % c.size())) return false;
  }
  for (int r = 0; r < c.size(); ++r) {
    sources[r] = (r == c.rank() ? c.input(r) : c.scratch(c.rank()) + r * room) + mine.begin;
  }
  c.reduce(c.output() + mine.begin, sources, c.size(), mine.bytes());
  c.sync();
  c.divide(c.output() + mine.begin, mine.bytes());
  return true;
}

// From the root into all others' scratch, by packets; they say when they have it.
template <class Team>
TUTTI_DEVICE bool packet_broadcast(tutti::KernelContext<Team>& c) {
  const auto mine = c.share(c.block_bytes());
  if (c.rank() != c.root()) {
    if (!c.take_packets(c.root(), 2 * mine.begin, c.output() + mine.begin, mine.bytes())) return false;
    c.signal(c.root());
    return true;
  }
  for (int d = 1; d < c.size(); ++d) {
    c.put_packets((c.rank() + d) % c.size(), 2 * mine.begin, c.input() + mine.begin, mine.bytes());
  }
  for (int d = 1; d < c.size(); ++d) {
    if (!c.wait((c.rank() + d) % c.size())) return false;
  }
  return true;
}

template <class Team>
TUTTI_DEVICE bool nothing(tutti::KernelContext<Team>&) {
  return false;
}

template <class Team>
TUTTI_DEVICE bool greedy(tutti::KernelContext<Team>& c) {
  const std::byte* from[9];
  for (auto& one : from) one = c.input();
  c.reduce(c.output(), from, 9, c.block_bytes());
  return true;
}

// The first rank waits for packets that nobody puts.
template <class Team>
TUTTI_DEVICE bool forgetful(tutti::KernelContext<Team>& c) {
  return c.rank() != 0 || c.take_packets(1, 0, c.output(), c.block_bytes());
}

}  // namespace

TUTTI_NATIVE_KERNEL(create_all_gather, scratch_all_gather, .name = "kernel_all_gather", .collective = "allgather",
                    .scratch_bytes = 64 << 10, .blocks = 4, .threads = 128)
TUTTI_NATIVE_KERNEL(create_all_reduce, packet_all_reduce, .name = "kernel_all_reduce", .collective = "allreduce",
                    .scratch_bytes = 512 << 10, .max_bytes = 32 << 10, .blocks = 4, .threads = 256)
TUTTI_NATIVE_KERNEL(create_reduce_scatter, signal_reduce_scatter, .name = "kernel_reduce_scatter",
                    .collective = "reducescatter", .scratch_bytes = 512 << 10, .max_bytes = 64 << 10, .blocks = 4,
                    .threads = 256)
TUTTI_NATIVE_KERNEL(create_broadcast, packet_broadcast, .name = "kernel_broadcast", .collective = "broadcast",
                    .scratch_bytes = 64 << 10, .max_bytes = 32 << 10, .blocks = 2)
TUTTI_NATIVE_KERNEL(create_nothing, nothing, .name = "kernel_nothing", .collective = "allreduce")
TUTTI_NATIVE_KERNEL(create_greedy, greedy, .name = "kernel_greedy", .collective = "allreduce")
TUTTI_NATIVE_KERNEL(create_forgetful, forgetful, .name = "kernel_forgetful", .collective = "allreduce",
                    .scratch_bytes = 64 << 10)
