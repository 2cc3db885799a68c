// The shared-memory rings: conformance in threads and processes, wraparound, and what a confused peer can do.
#include "transport/shm/shm_transport.h"

#include "transport/shm_world.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

class ShmThreads final : public ThreadWorld {
 public:
  ShmThreads(int ranks, std::size_t capacity) : rings_(ranks, capacity) {
    for (int rank = 0; rank < ranks; ++rank)
      transports_.push_back(std::make_unique<ShmTransport>(rings_.options(rank)));
  }
  void vanish(int rank) override {
    rings_.leave(rank);
    ThreadWorld::vanish(rank);
  }

 private:
  SharedRings rings_;
};

class ShmProcesses final : public TransportWorld {
 public:
  ShmProcesses(int ranks, std::size_t capacity) : ranks_(ranks), rings_(ranks, capacity) {}
  void run(const std::function<void(int, Transport&)>& body) override {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks_; ++rank)
      pids.push_back(fork_rank([&] {
        ShmTransport transport(rings_.options(rank));
        body(rank, transport);
      }));
    for (const pid_t pid : pids) expect_clean_exit(pid);
  }
  void idle(int) override { std::this_thread::yield(); }
  void vanish(int rank) override { rings_.leave(rank); }

 private:
  int ranks_;
  SharedRings rings_;
};

WorldFactory threads(std::size_t capacity) {
  return {"threads", [capacity](int ranks) { return std::make_unique<ShmThreads>(ranks, capacity); }};
}

WorldFactory processes(std::size_t capacity) {
  return {"processes", [capacity](int ranks) { return std::make_unique<ShmProcesses>(ranks, capacity); }};
}

INSTANTIATE_TEST_SUITE_P(ShmThreads, TransportConformance, ::testing::Values(threads(65536), threads(4096)));
INSTANTIATE_TEST_SUITE_P(ShmProcesses, TransportConformance, ::testing::Values(processes(65536)));

struct RingMemory {
  explicit RingMemory(std::size_t capacity) : rings(1, capacity) {}
  std::byte* data() { return rings.ring(0, 0); }
  RingHeader& header() { return *reinterpret_cast<RingHeader*>(data()); }

  SharedRings rings;
};

// Odd sizes walk every offset, so copies are split at the end of the ring in every way.
TEST(Ring, WrapsAroundAtEveryOffset) {
  constexpr std::size_t kCapacity = 64;
  RingMemory memory(kCapacity);
  RingWriter writer(memory.data(), kCapacity);
  RingReader reader(memory.data(), kCapacity);
  std::uint8_t next_out = 0;
  std::uint8_t next_in = 0;
  for (std::size_t size = 1; size <= kCapacity; ++size) {
    for (int round = 0; round < 70; ++round) {
      std::vector<std::byte> out(size);
      for (std::byte& b : out) b = static_cast<std::byte>(next_out++);
      const std::size_t head = static_cast<std::size_t>(round) % (size + 1);
      ASSERT_EQ(writer.write(ConstBytes(out).first(head), ConstBytes(out).subspan(head)), size);
      std::vector<std::byte> in(size);
      const std::size_t first = static_cast<std::size_t>(round) % size + 1;
      ASSERT_EQ(reader.read(MutableBytes(in).first(first)), first);
      ASSERT_EQ(reader.read(MutableBytes(in).subspan(first)), size - first);
      for (const std::byte b : in) ASSERT_EQ(b, static_cast<std::byte>(next_in++));
    }
  }
}

TEST(Ring, FullRingTakesNothingAndGivesRoomBack) {
  RingMemory memory(4096);
  RingWriter writer(memory.data(), 4096);
  RingReader reader(memory.data(), 4096);
  std::vector<std::byte> block(5000);
  EXPECT_EQ(writer.write(block, block), 4096U);
  EXPECT_EQ(writer.write(block, block), 0U);
  std::byte byte;
  EXPECT_EQ(reader.read({&byte, 1}), 1U);
  EXPECT_EQ(writer.write(block, block), 1U);
  EXPECT_EQ(reader.read(block), 4096U);
  EXPECT_EQ(reader.read(block), 0U);
}

// The counters of the other side lie in memory that it can fill with anything.
TEST(Ring, InsaneCountersBreakTheEndInsteadOfMemory) {
  const std::uint64_t kBad[] = {4097, ~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{1} << 32};
  for (const std::uint64_t bad : kBad) {
    RingMemory memory(4096);
    std::vector<std::byte> block(8192);
    RingReader reader(memory.data(), 4096);
    memory.header().head.store(bad, std::memory_order_relaxed);  // one thread: no order needed
    EXPECT_EQ(reader.read(block), 0U);
    EXPECT_TRUE(reader.broken());
    memory.header().head.store(1, std::memory_order_relaxed);
    EXPECT_EQ(reader.read(block), 0U) << "broken stays broken";

    RingMemory other(4096);
    RingWriter writer(other.data(), 4096);
    EXPECT_EQ(writer.write(block, {}), 4096U);
    other.header().tail.store(bad, std::memory_order_relaxed);
    EXPECT_EQ(writer.write(block, {}), 0U);
    EXPECT_TRUE(writer.broken());
  }
}

TEST(Ring, CountersThatGoBackBreakTheEnd) {
  RingMemory memory(4096);
  RingWriter writer(memory.data(), 4096);
  RingReader reader(memory.data(), 4096);
  std::vector<std::byte> block(4096);
  ASSERT_EQ(writer.write(block, {}), 4096U);
  ASSERT_EQ(reader.read(MutableBytes(block).first(1000)), 1000U);
  ASSERT_EQ(writer.write(block, {}), 1000U);
  memory.header().tail.store(10, std::memory_order_relaxed);
  EXPECT_EQ(writer.write(block, {}), 0U);
  EXPECT_TRUE(writer.broken());
}

TEST(ShmTransport, BrokenRingIsTheLinksStatus) {
  SharedRings rings(2, 4096);
  ShmTransport transport(rings.options(0));
  Link* link = transport.link(1);
  EXPECT_EQ(link->status(), Status::kOk);
  reinterpret_cast<RingHeader*>(rings.ring(1, 0))->head.store(99999, std::memory_order_relaxed);
  std::byte byte;
  EXPECT_EQ(link->read_some({&byte, 1}), 0U);
  EXPECT_EQ(link->status(), Status::kInternal);
}

TEST(ShmTransport, RefusesCapacitiesThatItCannotUse) {
  SharedRings rings(2, 4096);
  for (const std::size_t capacity : {std::size_t{0}, std::size_t{2048}, std::size_t{5000}}) {
    ShmTransportOptions options = rings.options(0);
    options.ring_capacity = capacity;
    EXPECT_THROW(ShmTransport{options}, Error) << capacity;
  }
}

TEST(ShmTransport, ServesOnlyTheRanksOfItsHost) {
  SharedRings rings(3, 4096);
  ShmTransportOptions options = rings.options(1);
  options.rank_of_index = {4, 7, 9};
  ShmTransport transport(options);
  EXPECT_NE(transport.link(4), nullptr);
  EXPECT_EQ(transport.link(7), nullptr);
  EXPECT_NE(transport.link(9), nullptr);
  EXPECT_EQ(transport.link(0), nullptr);
  int peers[1];
  std::vector<int> told;
  while (transport.accept_new(peers) == 1) told.push_back(peers[0]);
  EXPECT_EQ(told, (std::vector<int>{4, 9}));
}

}  // namespace
}  // namespace tutti::test
