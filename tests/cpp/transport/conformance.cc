// The conformance suite of all transports; see conformance.h.
#include "transport/conformance.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <random>

#include "base/clock.h"

namespace tutti::test {
namespace {

constexpr std::chrono::milliseconds kBound{30'000};

std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

std::uint64_t seed_of(int from, int to) { return static_cast<std::uint64_t>(from * 1000 + to + 1); }

// One rank's traffic with one peer: writes `out` in pieces of odd sizes while it reads into `in`.
class Exchange {
 public:
  Exchange(Transport& transport, int rank, int peer, std::size_t bytes)
      : transport_(transport),
        peer_(peer),
        random_(seed_of(peer, rank)),
        out_(random_bytes(seed_of(rank, peer), bytes)),
        in_(bytes) {}

  bool done() const { return sent_ == out_.size() && got_ == in_.size(); }
  bool right(int rank) const { return in_ == random_bytes(seed_of(peer_, rank), in_.size()); }

  bool step() {
    Link* link = transport_.link(peer_);
    const ConstBytes rest = ConstBytes(out_).subspan(sent_, std::min(piece(), out_.size() - sent_));
    const std::size_t head = rest.empty() ? 0 : random_() % (rest.size() + 1);
    const std::size_t sent = rest.empty() ? 0 : link->write_some(rest.first(head), rest.subspan(head));
    EXPECT_LE(sent, rest.size());
    const std::size_t got = link->read_some(MutableBytes(in_).subspan(got_, std::min(piece(), in_.size() - got_)));
    sent_ += sent;
    got_ += got;
    return sent + got != 0;
  }

 private:
  std::size_t piece() { return 1 + random_() % (random_() % 4 == 0 ? 100'000 : 777); }

  Transport& transport_;
  int peer_;
  std::mt19937_64 random_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  std::size_t sent_ = 0;
  std::size_t got_ = 0;
};

// Accepts whatever has come; the transport's own news count as progress for nobody.
void accept(Transport& transport) {
  std::array<int, 8> peers;
  transport.accept_new(peers);
}

bool write_all(TransportWorld& world, int rank, Transport& transport, int peer, ConstBytes bytes) {
  Deadline deadline = Deadline::after(kBound);
  while (!bytes.empty()) {
    accept(transport);
    const std::size_t n = transport.link(peer)->write_some(bytes, {});
    bytes = bytes.subspan(n);
    if (n == 0 && deadline.expired()) return false;
    if (n == 0) world.idle(rank);
  }
  return true;
}

bool read_all(TransportWorld& world, int rank, Transport& transport, int peer, MutableBytes into) {
  Deadline deadline = Deadline::after(kBound);
  while (!into.empty()) {
    accept(transport);
    const std::size_t n = transport.link(peer)->read_some(into);
    into = into.subspan(n);
    if (n == 0 && deadline.expired()) return false;
    if (n == 0) world.idle(rank);
  }
  return true;
}

}  // namespace

TEST_P(TransportConformance, LinksAreStableAndLeadToOthersOnly) {
  auto world = GetParam().make(3);
  world->run([&](int rank, Transport& transport) {
    EXPECT_FALSE(transport.name().empty());
    EXPECT_EQ(transport.link(rank), nullptr);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      Link* link = transport.link(peer);
      ASSERT_NE(link, nullptr);
      EXPECT_EQ(link, transport.link(peer));
      EXPECT_EQ(link->status(), Status::kOk);
    }
  });
}

TEST_P(TransportConformance, EmptyReadsAndWritesMoveNothing) {
  auto world = GetParam().make(2);
  world->run([&](int rank, Transport& transport) {
    Link* link = transport.link(1 - rank);
    std::byte byte{};
    EXPECT_EQ(link->write_some({}, {}), 0U);
    EXPECT_EQ(link->read_some({&byte, 1}), 0U);
    EXPECT_EQ(link->read_some({}), 0U);
    EXPECT_EQ(link->status(), Status::kOk);
  });
}

TEST_P(TransportConformance, BothDirectionsKeepTheirBytesInOrder) {
  auto world = GetParam().make(2);
  world->run([&](int rank, Transport& transport) {
    Exchange exchange(transport, rank, 1 - rank, 1'000'003);
    Deadline deadline = Deadline::after(kBound);
    while (!exchange.done()) {
      accept(transport);
      if (exchange.step()) continue;
      ASSERT_FALSE(deadline.expired());
      world->idle(rank);
    }
    EXPECT_TRUE(exchange.right(rank));
  });
}

TEST_P(TransportConformance, AllPairsAtOnce) {
  constexpr int kRanks = 4;
  auto world = GetParam().make(kRanks);
  world->run([&](int rank, Transport& transport) {
    std::vector<Exchange> exchanges;
    for (int peer = 0; peer < kRanks; ++peer)
      if (peer != rank) exchanges.emplace_back(transport, rank, peer, 70'001);
    Deadline deadline = Deadline::after(kBound);
    auto done = [&] { return std::all_of(exchanges.begin(), exchanges.end(), [](auto& e) { return e.done(); }); };
    while (!done()) {
      bool moved = false;
      accept(transport);
      for (Exchange& e : exchanges) moved |= e.step();
      if (moved) continue;
      ASSERT_FALSE(deadline.expired());
      world->idle(rank);
    }
    for (const Exchange& e : exchanges) EXPECT_TRUE(e.right(rank));
  });
}

// A receiver that does not read must stop the writer, not block it, and loses nothing of what was taken. Rank 2 brings
// rank 1 the count of what it may read.
TEST_P(TransportConformance, WriterIsStoppedButNotBlocked) {
  constexpr std::uint64_t kMost = 256 << 20;
  const std::vector<std::byte> block = random_bytes(7, 100'003);
  auto world = GetParam().make(3);
  world->run([&](int rank, Transport& transport) {
    std::uint64_t count = 0;
    const MutableBytes raw(reinterpret_cast<std::byte*>(&count), sizeof count);
    if (rank == 0) {
      ASSERT_TRUE(write_all(*world, rank, transport, 1, block));
      count = block.size();
      for (int idle = 0; idle < 100 && count < kMost;) {
        const std::size_t n = transport.link(1)->write_some({}, ConstBytes(block).subspan(count % block.size()));
        count += n;
        idle = n == 0 ? idle + 1 : 0;
      }
      EXPECT_LT(count, kMost) << "the link takes everything and keeps it";
      ASSERT_TRUE(write_all(*world, rank, transport, 2, raw));
    } else if (rank == 2) {
      ASSERT_TRUE(read_all(*world, rank, transport, 0, raw));
      ASSERT_TRUE(write_all(*world, rank, transport, 1, raw));
    } else {
      std::vector<std::byte> got(block.size());
      ASSERT_TRUE(read_all(*world, rank, transport, 0, got));
      EXPECT_EQ(got, block);
      ASSERT_TRUE(read_all(*world, rank, transport, 2, raw));
      for (std::uint64_t done = got.size(); done < count; done += got.size()) {
        got.resize(std::min<std::uint64_t>(block.size(), count - done));
        ASSERT_TRUE(read_all(*world, rank, transport, 0, got));
        ASSERT_TRUE(std::equal(got.begin(), got.end(), block.begin()));
      }
    }
  });
}

// The receiver asks for nothing before: it hears of the sender by accept_new, exactly once before the first bytes.
TEST_P(TransportConformance, ReceiverIsToldOfNewLinks) {
  auto world = GetParam().make(2);
  world->run([&](int rank, Transport& transport) {
    std::byte byte{42};
    if (rank == 0) {
      ASSERT_TRUE(write_all(*world, rank, transport, 1, {&byte, 1}));
      ASSERT_TRUE(read_all(*world, rank, transport, 1, {&byte, 1}));
      EXPECT_EQ(byte, std::byte{43});
      return;
    }
    Deadline deadline = Deadline::after(kBound);
    std::array<int, 8> peers;
    int told = 0;
    for (; told == 0 && !deadline.expired(); world->idle(rank)) told = transport.accept_new(peers);
    ASSERT_EQ(told, 1);
    EXPECT_EQ(peers[0], 0);
    byte = {};
    ASSERT_TRUE(read_all(*world, rank, transport, 0, {&byte, 1}));
    EXPECT_EQ(byte, std::byte{42});
    EXPECT_EQ(transport.accept_new(peers), 0);
    byte = std::byte{43};
    ASSERT_TRUE(write_all(*world, rank, transport, 0, {&byte, 1}));
  });
}

// Where a link has a descriptor, poll() must return when bytes are there.
TEST_P(TransportConformance, DescriptorTellsOfBytes) {
  auto world = GetParam().make(2);
  world->run([&](int rank, Transport& transport) {
    std::byte byte{1};
    if (rank == 0) {
      for (int i = 0; i < 20; ++i) {
        ASSERT_TRUE(write_all(*world, rank, transport, 1, {&byte, 1}));
        ASSERT_TRUE(read_all(*world, rank, transport, 1, {&byte, 1}));
      }
      return;
    }
    for (int i = 0; i < 20; ++i) {
      Deadline deadline = Deadline::after(kBound);
      while (transport.link(0)->read_some({&byte, 1}) == 0) {
        ASSERT_FALSE(deadline.expired());
        pollfd fd{transport.link(0)->poll_fd(), POLLIN, 0};
        if (fd.fd < 0) {
          world->idle(rank);
        } else {
          ASSERT_GT(::poll(&fd, 1, static_cast<int>(kBound.count())), 0);
        }
        accept(transport);
      }
      ASSERT_TRUE(write_all(*world, rank, transport, 0, {&byte, 1}));
    }
  });
}

// Exactly the bytes that were sent can be read from a peer that is gone, then the link says why.
TEST_P(TransportConformance, LastBytesOutliveTheSender) {
  auto world = GetParam().make(2);
  world->run([&](int rank, Transport& transport) {
    std::vector<std::byte> bytes = random_bytes(3, 3000);
    if (rank == 0) {
      ASSERT_TRUE(write_all(*world, rank, transport, 1, bytes));
      std::byte heard{};
      ASSERT_TRUE(read_all(*world, rank, transport, 1, {&heard, 1}));
      world->vanish(rank);
      return;
    }
    // The answer may overtake the reading of the rest: the sender goes while there are bytes to read.
    std::vector<std::byte> got(bytes.size());
    ASSERT_TRUE(read_all(*world, rank, transport, 0, MutableBytes(got).first(2999)));
    Deadline deadline = Deadline::after(kBound);
    std::byte heard{1};
    ASSERT_TRUE(write_all(*world, rank, transport, 0, {&heard, 1}));
    ASSERT_TRUE(read_all(*world, rank, transport, 0, MutableBytes(got).last(1)));
    EXPECT_EQ(got, bytes);
    Link* link = transport.link(0);
    while (link->status() == Status::kOk) {
      EXPECT_EQ(link->read_some({&heard, 1}), 0U);
      ASSERT_FALSE(deadline.expired());
      world->idle(rank);
    }
    EXPECT_EQ(link->read_some({&heard, 1}), 0U);
    link->write_some({&heard, 1}, {});  // goes nowhere, harms nobody
  });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

}  // namespace tutti::test
