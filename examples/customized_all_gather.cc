// An all-gather in C++ that examples/customized_comm.py compiles when it runs.
//
// Every rank puts a piece of its block into its scratch, tells all others, and copies the pieces of all from there. Two
// halves of scratch in turn, so that a rank fills one while its peers still read the other: one signal a piece and
// peer. Each byte is copied once into scratch and n-1 times out of it.
#include <tutti/native_plugin.h>

#include <algorithm>

namespace {

bool all_gather(tutti::plugin::Context& c) {
  const std::size_t block = c.block_bytes();
  const std::size_t half = c.scratch_bytes() / 2;
  std::byte* const own = c.output() + c.rank() * block;
  if (own != c.input()) c.copy(own, c.input(), block);
  std::size_t turn = 0;
  for (std::size_t begin = 0; begin < block; begin += half, turn ^= 1) {
    const std::size_t piece = std::min(half, block - begin);
    c.copy(c.scratch(c.rank()) + turn * half, c.input() + begin, piece);
    // Also says that this rank has read the piece before from all others, whose place the next one takes.
    if (!c.barrier()) return false;
    for (int step = 1; step < c.size(); ++step) {
      const int peer = (c.rank() + step) % c.size();  // not all at the same one
      c.copy(c.output() + peer * block + begin, c.scratch(peer) + turn * half, piece);
    }
  }
  return true;
}

}  // namespace

TUTTI_NATIVE_ALGORITHM(create_all_gather, .name = "scratch_all_gather", .collective = "allgather",
                       .scratch_bytes = 512 << 10, .run = all_gather)
