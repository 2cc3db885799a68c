// An all-gather of one's own that examples/customized_comm.py compiles when it runs: a kernel on GPUs, a function on
// CPUs.
//
// Every thread block puts a piece of its part of the rank's block into the rank's scratch, meets the same block of all
// other ranks, and copies the pieces of all from there. Two halves of scratch in turn, so that a rank fills one while
// its peers still read the other: one meeting a piece. Each byte is copied once into scratch and n-1 times out of it.
#include <tutti/plugin/kernel.cuh>

namespace {

template <class Team>
TUTTI_DEVICE bool all_gather(tutti::KernelContext<Team>& c) {
  const std::uint64_t half = c.scratch_bytes() / 2;
  const auto mine = c.share(c.block_bytes());  // of the rank's block
  const auto room = c.share(half);             // of each half
  c.copy(c.output(c.rank()) + mine.begin, c.input() + mine.begin, mine.bytes());
  std::uint64_t at = room.begin;
  for (std::uint64_t begin = mine.begin; begin < mine.end; begin += room.bytes()) {
    const std::uint64_t piece = mine.end - begin < room.bytes() ? mine.end - begin : room.bytes();
    c.put(c.rank(), at, c.input() + begin, piece);
    // Also says that this block has read the piece before from all others, whose place the next one takes.
    if (!c.barrier()) return false;
    for (int step = 1; step < c.size(); ++step) {
      const int peer = (c.rank() + step) % c.size();  // not all at the same one
      c.copy(c.output(peer) + begin, c.scratch(peer) + at, piece);
    }
    at = at == room.begin ? room.begin + half : room.begin;
  }
  return true;
}

}  // namespace

TUTTI_NATIVE_KERNEL(create_all_gather, all_gather, .name = "scratch_all_gather", .collective = "allgather",
                    .scratch_bytes = 4 << 20, .blocks = 16, .threads = 512)
