// A plug-in whose ranks ask the test between their steps: one algorithm that reduces nothing, and one that fails.
#include <tutti/plugin/algorithm.h>

// Of rank `rank`, at its `step`, on its thread. The test's.
extern "C" __attribute__((visibility("default"))) void (*asking_plugin_asks)(int rank, int step) = nullptr;

namespace {

// Rank 0 waits for a signal, then for a packet.
bool ask(tutti::plugin::Context& c) {
  auto* const packet = reinterpret_cast<std::uint64_t*>(c.scratch(0));
  asking_plugin_asks(c.rank(), 0);
  if (c.rank() == 0) {
    if (!c.wait(1)) return false;
    asking_plugin_asks(0, 1);
    if (!c.await_packets(1, packet, 1)) return false;
    asking_plugin_asks(0, 2);
  } else {
    c.signal(0);
    asking_plugin_asks(1, 1);
    __atomic_store_n(packet, std::uint64_t{c.flag()} << 32, __ATOMIC_RELEASE);  // release: as the library has it
    c.ring(0);
  }
  return c.barrier();
}
TUTTI_NATIVE_ALGORITHM(create_asking, .name = "asking", .collective = "allreduce", .scratch_bytes = 128, .run = ask)

// Rank 0 asks once all have what it gives, and fails. Of so few bytes, that a test can say which calls it is.
bool give_and_fail(tutti::plugin::Context& c) {
  c.copy(c.scratch(c.rank()), c.input(), c.block_bytes());
  if (!c.barrier()) return false;
  for (int r = 0; r < c.size(); ++r) {
    c.copy(c.output() + static_cast<std::size_t>(r) * c.block_bytes(), c.scratch(r), c.block_bytes());
  }
  if (c.rank() != 0) return true;
  asking_plugin_asks(0, 0);
  return c.fail("rank 0 has had enough");
}
TUTTI_NATIVE_ALGORITHM(create_failing, .name = "failing", .collective = "allgather", .scratch_bytes = 128,
                       .min_bytes = 16, .max_bytes = 16, .run = give_and_fail)
TUTTI_NATIVE_ALGORITHM(create_greedy, .name = "greedy", .collective = "allreduce", .scratch_bytes = 1ULL << 50,
                       .run = ask)

}  // namespace
