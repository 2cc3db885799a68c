// The simulated transport: conformance, and that faults and schedules are what the seed says.
#include "transport/sim/sim_network.h"

#include "transport/conformance.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

class SimWorld final : public TransportWorld {
 public:
  SimWorld(int ranks, std::uint64_t seed) : ranks_(ranks), network_(ranks, {.seed = seed}) {}
  void run(const std::function<void(int, Transport&)>& body) override {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) threads.emplace_back([&, rank] { body(rank, network_.transport(rank)); });
    for (std::thread& t : threads) t.join();
  }
  void idle(int) override {
    if (!network_.advance()) std::this_thread::yield();
  }
  void vanish(int rank) override { network_.kill(rank); }

 private:
  int ranks_;
  SimNetwork network_;
};

WorldFactory seeded(std::uint64_t seed) {
  return {"seed " + std::to_string(seed), [seed](int ranks) { return std::make_unique<SimWorld>(ranks, seed); }};
}

INSTANTIATE_TEST_SUITE_P(Sim, TransportConformance, ::testing::Values(seeded(1), seeded(2)));

// Two ranks that write and read for a while; what was read when is the trace.
std::vector<std::size_t> trace(std::uint64_t seed) {
  SimNetwork network(2, {.seed = seed});
  std::vector<std::byte> block(3000);
  std::vector<std::size_t> sizes;
  for (int i = 0; i < 50; ++i) {
    sizes.push_back(network.transport(0).link(1)->write_some(block, {}));
    sizes.push_back(network.transport(1).link(0)->read_some(block));
    if (i % 3 == 0) network.advance();
    sizes.push_back(static_cast<std::size_t>(network.time_ns()));
  }
  return sizes;
}

TEST(SimNetwork, SeedDecidesTheSchedule) {
  EXPECT_EQ(trace(5), trace(5));
  EXPECT_NE(trace(5), trace(6));
}

TEST(SimNetwork, NothingArrivesBeforeItsTime) {
  SimNetwork network(2, {.seed = 3, .max_delay_ns = 1'000'000});
  std::byte byte{7};
  ASSERT_EQ(network.transport(0).link(1)->write_some({&byte, 1}, {}), 1U);
  EXPECT_EQ(network.transport(1).link(0)->read_some({&byte, 1}), 0U);
  EXPECT_TRUE(network.advance());
  EXPECT_GT(network.time_ns(), 0);
  EXPECT_EQ(network.transport(1).link(0)->read_some({&byte, 1}), 1U);
  EXPECT_FALSE(network.advance()) << "nothing is under way";
}

TEST(SimNetwork, RankDiesAtItsOperation) {
  SimNetwork network(3, {});
  network.kill_at(0, 3);
  std::byte byte{7};
  Link* link = network.transport(0).link(1);
  EXPECT_EQ(link->write_some({&byte, 1}, {}), 1U);
  while (network.advance()) {
  }
  EXPECT_EQ(link->write_some({&byte, 1}, {}), 1U);
  EXPECT_TRUE(network.alive(0));
  EXPECT_EQ(link->write_some({&byte, 1}, {}), 0U);
  EXPECT_FALSE(network.alive(0));
  EXPECT_EQ(network.transport(1).link(0)->status(), Status::kPeerLost);
  EXPECT_EQ(network.transport(2).link(0)->status(), Status::kPeerLost);
  EXPECT_EQ(network.transport(2).link(1)->status(), Status::kOk);
  EXPECT_EQ(network.transport(1).link(0)->read_some({&byte, 1}), 1U) << "what had been delivered stays readable";
  EXPECT_EQ(network.transport(1).link(0)->read_some({&byte, 1}), 0U) << "what was under way is lost";
}

TEST(SimNetwork, CutLeavesTheOtherLinksAlone) {
  SimNetwork network(3, {});
  network.cut_at(0, 2, 1);
  std::byte byte{7};
  EXPECT_EQ(network.transport(2).link(0)->write_some({&byte, 1}, {}), 0U);
  EXPECT_EQ(network.transport(0).link(2)->status(), Status::kPeerLost);
  EXPECT_EQ(network.transport(0).link(1)->write_some({&byte, 1}, {}), 1U);
  EXPECT_TRUE(network.alive(0) && network.alive(2));
}

TEST(SimNetwork, RefusesLinksThatArePointless) { EXPECT_THROW(SimNetwork(2, {.capacity = 100}), Error); }

}  // namespace
}  // namespace tutti::test
