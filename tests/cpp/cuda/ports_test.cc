// Ports on the host: the ring's protocol between many writers and its reader, the proxy's order, flushes, ends and
// refusals, and channels as kernels use them.
#include <gtest/gtest.h>

#include <barrier>

#include "cuda/host_ports.h"

namespace tutti::cuda::test {
namespace {

using device::FailureCode;
using device::PortRequest;
constexpr device::SerialTeam kTeam;

// A request that tells who made it, and when, in every field.
PortRequest request_of(std::uint32_t writer, std::uint64_t n) {
  return {static_cast<std::uint32_t>(n % 7 + 1),
          writer,
          static_cast<std::uint32_t>(n % device::kPortIds),
          (writer + 1) % device::kPortIds,
          ~n,
          n * 3 + writer,
          n << 40 | writer};
}
bool same(const PortRequest& a, const PortRequest& b) {
  return a.kind == b.kind && a.port == b.port && a.to_memory == b.to_memory && a.from_memory == b.from_memory &&
         a.to == b.to && a.from == b.from && a.bytes == b.bytes;
}

struct Ring {
  explicit Ring(std::uint32_t size) : slots(size), reader(slots.data(), &tail, size) {
    host.timeout_ns = 60'000'000'000;
    control.failed = &failed;
    control.poison = &poison;
    control.host = &host;
    fifo = {slots.data(), &tail, &head, &known_tail, size};
  }
  std::vector<device::PortSlot> slots;
  std::uint64_t tail = 0, head = 0, known_tail = 0, failed = 0, poison = 0;
  device::HostControl host;
  device::Control control;
  device::PortFifo fifo;
  PortRing reader;
};

TEST(PortRing, EveryRequestArrivesOnceWholeAndInItsWritersOrder) {
  for (const std::uint32_t size : {1u, 4u, 32u}) {
    Ring ring(size);
    constexpr std::uint32_t kWriters = 3;
    const std::uint64_t each = size == 1 ? 10 : 100;  // it changes hands at every request
    std::vector<std::thread> writers;
    for (std::uint32_t w = 0; w < kWriters; ++w) {
      writers.emplace_back([&, w] {
        for (std::uint64_t n = 0; n < each; ++n) {
          std::uint64_t position = 0;
          if (!ring.fifo.push(ring.control, request_of(w, n), position)) return;
        }
      });
    }
    std::vector<std::uint64_t> next(kWriters, 0);
    std::string wrong;
    for (std::uint64_t taken = 0; taken < kWriters * each;) {
      const auto request = ring.reader.front();
      if (!request) {
        std::this_thread::yield();
        continue;
      }
      const std::uint32_t writer = request->port;
      if (writer >= kWriters || !same(*request, request_of(writer, next[writer]))) {
        wrong = "request " + std::to_string(taken) + " of a ring of " + std::to_string(size);
        break;
      }
      ++next[writer];
      ++taken;
      ring.reader.pop();
    }
    EXPECT_EQ(wrong, "");
    if (!wrong.empty()) device::store_relaxed(&ring.host.abort, 1);
    for (std::thread& t : writers) t.join();
    EXPECT_FALSE(ring.reader.front().has_value());
  }
}

TEST(PortRing, FieldsKeepTheirLargestValues) {
  Ring ring(2);
  const std::uint32_t most = device::kPortIds - 1;
  const PortRequest largest{7, most, most, most, ~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}};
  std::uint64_t position = 0;
  for (std::uint64_t n = 0; n < 6; ++n) {  // both parities of a lap
    ASSERT_TRUE(ring.fifo.push(ring.control, largest, position));
    EXPECT_EQ(position, n);
    const auto got = ring.reader.front();
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(same(*got, largest)) << n;
    ring.reader.pop();
    EXPECT_FALSE(ring.reader.front().has_value()) << "a request of an earlier lap is taken again";
  }
}

TEST(PortRing, AbortAndDeadlineEndAWaitForRoom) {
  for (const bool abort : {true, false}) {
    Ring ring(4);
    std::uint64_t position = 0;
    for (std::uint64_t n = 0; n < 4; ++n) ASSERT_TRUE(ring.fifo.push(ring.control, request_of(0, n), position));
    if (abort) {
      ring.host.abort = 1;
    } else {
      ring.host.timeout_ns = 1;
    }
    EXPECT_FALSE(ring.fifo.push(ring.control, request_of(0, 4), position));
    EXPECT_EQ(static_cast<FailureCode>(ring.host.code), abort ? FailureCode::kAborted : FailureCode::kTimeout);
    EXPECT_EQ(ring.host.peer, 0u) << "the rank to blame is this one: its own proxy has not come";
    for (std::uint64_t n = 0; n < 4; ++n) {
      ASSERT_TRUE(ring.reader.front().has_value());
      EXPECT_TRUE(same(*ring.reader.front(), request_of(0, n))) << "the full ring was written";
      ring.reader.pop();
    }
  }
}

// What rank `from` sends to rank `to` in one round.
std::byte value(int from, int to, int round, std::size_t i) {
  return static_cast<std::byte>(i * 7 + static_cast<std::size_t>(from * 31 + to * 5 + round * 3));
}

// Every rank sends to every other, overwrites its source after each flush, and checks what has come. More requests than
// the ring holds; a block a peer, all on one ring.
TEST(Ports, PutSignalFlushAndWait) {
  constexpr int kRanks = 3, kRounds = 20;
  constexpr std::size_t kBytes = 999, kLane = 2 * kBytes;
  HostPorts ports(kRanks, kLane * kRanks, 4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> blocks;
  for (int r = 0; r < kRanks; ++r) {
    for (int p = 0; p < kRanks; ++p) {
      if (p == r) continue;
      blocks.emplace_back([&, r, p, port = ports.port(r, p)] {
        const std::size_t source = kLane * static_cast<std::size_t>(p);           // for p, in this rank's memory
        const std::size_t target = kLane * static_cast<std::size_t>(r) + kBytes;  // from r, in p's memory
        const std::byte* inbox = ports.memory(r) + kLane * static_cast<std::size_t>(p) + kBytes;
        for (int round = 0; round < kRounds; ++round) {
          for (std::size_t i = 0; i < kBytes; ++i) ports.memory(r)[source + i] = value(r, p, round, i);
          bool ok = true;
          if (round % 2 == 0) {
            ok = port.put_with_signal_and_flush(kTeam, target, source, kBytes);
          } else {
            // In two puts, the signal by itself.
            ok = port.put(kTeam, target, source, 400) && port.put(kTeam, target + 400, source + 400, kBytes - 400) &&
                 port.signal(kTeam) && port.flush(kTeam);
          }
          // Flushed: what is written here must not arrive.
          for (std::size_t i = 0; i < kBytes; ++i) ports.memory(r)[source + i] = std::byte{0xee};
          ok = ok && port.wait(kTeam);
          for (std::size_t i = 0; i < kBytes && ok; ++i) {
            if (inbox[i] != value(p, r, round, i)) wrong.fetch_add(1);
          }
          // The peer may send the next round.
          ok = ok && port.signal(kTeam) && port.wait(kTeam);
          if (!ok) {
            wrong.fetch_add(1 << 20);
            return;
          }
        }
      });
    }
  }
  for (std::thread& t : blocks) t.join();
  EXPECT_EQ(wrong.load(), 0);
  for (int r = 0; r < kRanks; ++r) EXPECT_FALSE(ports.rank(r).proxy->failure().has_value());
}

TEST(Ports, SeveralBlocksShareAPort) {
  constexpr int kBlocks = 4, kEach = 20;
  constexpr std::size_t kBytes = 64;
  HostPorts ports(2, kBytes * kBlocks * kEach, 4);
  for (std::size_t i = 0; i < kBytes * kBlocks * kEach; ++i) ports.memory(0)[i] = value(0, 1, 0, i);
  const device::PortChannel from = ports.port(0, 1), at = ports.port(1, 0);
  std::vector<std::thread> blocks;
  for (int b = 0; b < kBlocks; ++b) {
    blocks.emplace_back([&, b] {
      for (int n = 0; n < kEach; ++n) {
        const std::size_t offset = kBytes * static_cast<std::size_t>(b * kEach + n);
        EXPECT_TRUE(from.put_with_signal(kTeam, offset, offset, kBytes));
        // The flush of one block is not ended by that of another: its own bytes have been read.
        if (n % 10 == 9) {
          EXPECT_TRUE(from.flush(kTeam));
          std::memset(ports.memory(0) + offset, 0xee, kBytes);
        }
      }
    });
  }
  for (int n = 0; n < kBlocks * kEach; ++n) ASSERT_TRUE(at.wait(kTeam));
  EXPECT_FALSE(at.poll());
  for (std::size_t i = 0; i < kBytes * kBlocks * kEach; ++i) ASSERT_EQ(ports.memory(1)[i], value(0, 1, 0, i)) << i;
  for (std::thread& t : blocks) t.join();
}

TEST(Ports, MemoriesAreNamedByNumber) {
  HostPorts ports(2, 64);
  std::vector<std::byte> mine(100, std::byte{7});
  const std::uint32_t only_here = ports.rank(0).proxy->add_memory({mine.data(), nullptr}, mine.size());
  device::PortChannel port = ports.port(0, 1);
  port.from_memory = only_here;
  ASSERT_TRUE(port.put_with_signal_and_flush(kTeam, 3, 90, 10));
  ASSERT_TRUE(ports.port(1, 0).wait(kTeam));
  EXPECT_EQ(ports.memory(1)[2], std::byte{0});
  EXPECT_EQ(ports.memory(1)[3], std::byte{7});
  EXPECT_EQ(ports.memory(1)[12], std::byte{7});
  EXPECT_EQ(ports.memory(1)[13], std::byte{0});
  // Its number is given to the next one.
  ports.rank(0).proxy->remove(only_here, {});
  EXPECT_EQ(ports.rank(0).proxy->add_memory({nullptr, mine.data()}, mine.size()), only_here);
}

TEST(Ports, RefusedRequestsAbortWithTheirReason) {
  struct Case {
    const char* text;
    std::size_t to, from, bytes;
    std::uint32_t memory, port;
  };
  for (const Case& c : {Case{"64 bytes to offset 1 of memory 0, which has 64 bytes", 1, 0, 64, 0, 0},
                        Case{"2 bytes from offset 63 of memory 0, which has 64 bytes", 0, 63, 2, 0, 0},
                        Case{"to offset 18446744073709551615 of memory 0", ~std::size_t{0}, 0, 2, 0, 0},
                        Case{"1 bytes to offset 0 of memory 5, which is gone", 0, 0, 1, 5, 0},
                        Case{"1 bytes to offset 0 of memory 1, of which rank 1 has no part here", 0, 0, 1, 1, 0},
                        Case{"port 9, which is gone", 0, 0, 1, 0, 9}}) {
    HostPorts ports(2, 64);
    std::byte mine{};
    static_cast<void>(ports.rank(0).proxy->add_memory({&mine, nullptr}, 1));
    device::PortChannel port = ports.port(0, 1);
    port.to_memory = c.memory;
    if (c.port != 0) port.port = c.port;
    EXPECT_FALSE(port.put_with_signal_and_flush(kTeam, c.to, c.from, c.bytes));
    EXPECT_EQ(static_cast<FailureCode>(ports.rank(0).host.code), FailureCode::kAborted);
    ports.rank(0).proxy->drain();
    const std::optional<Error> failure = ports.rank(0).proxy->failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(failure->what()).find(c.text), std::string::npos) << failure->what();
  }
}

TEST(Ports, AFlushWaitsForItsOwnPeerOnly) {
  HostPorts ports(3, 64);
  const device::PortChannel slow = ports.port(0, 1), fast = ports.port(0, 2);
  ports.rank(0).engine->hold(1, true);
  ASSERT_TRUE(slow.put(kTeam, 0, 0, 8));
  std::atomic<bool> flushed{false};
  std::thread waiter([&] {
    EXPECT_TRUE(slow.flush(kTeam));
    flushed.store(true, std::memory_order_release);
  });
  for (int n = 0; n < 20; ++n) ASSERT_TRUE(fast.put_with_signal_and_flush(kTeam, 0, 0, 8));
  EXPECT_FALSE(flushed.load(std::memory_order_acquire));
  ports.rank(0).engine->hold(1, false);
  waiter.join();
}

// More flushes than the engine has marks: none is lost, none answered early.
TEST(Ports, FlushesBeyondTheEnginesMarks) {
  HostPorts ports(2, 64, 16);
  const device::PortChannel port = ports.port(0, 1);
  ports.rank(0).engine->hold(1, true);
  std::atomic<int> done{0};
  std::vector<std::thread> blocks;
  for (int b = 0; b < 8; ++b) {
    blocks.emplace_back([&] {
      EXPECT_TRUE(port.put_with_signal_and_flush(kTeam, 0, 0, 8));
      done.fetch_add(1);
    });
  }
  while (device::load_acquire(&ports.rank(0).tail) < 3) std::this_thread::yield();  // three marks are under way
  EXPECT_EQ(done.load(), 0);
  ports.rank(0).engine->hold(1, false);
  for (std::thread& t : blocks) t.join();
  const device::PortChannel other = ports.port(1, 0);
  for (int b = 0; b < 8; ++b) ASSERT_TRUE(other.wait(kTeam));
  EXPECT_FALSE(other.poll()) << "a request was carried out twice";
}

TEST(Ports, AbortEndsWaitsOfEveryKind) {
  HostPorts ports(2, 64, 2);
  const device::PortChannel port = ports.port(0, 1);
  ports.rank(0).engine->hold(1, true);
  std::thread flush([&] { EXPECT_FALSE(port.flush(kTeam)); });
  std::thread wait([&] { EXPECT_FALSE(port.wait(kTeam)); });
  device::store_relaxed(&ports.rank(0).host.abort, 1);
  flush.join();
  wait.join();
  ports.rank(0).engine->hold(1, false);
  // The proxy has left, and nobody empties the ring any more.
  ports.rank(0).proxy->drain();
  while (port.put(kTeam, 0, 0, 8)) {
  }
  EXPECT_EQ(static_cast<FailureCode>(ports.rank(0).host.code), FailureCode::kAborted);
}

// What was asked for before has been copied then.
TEST(Ports, ADrainWaitsForCopiesUnderWay) {
  HostPorts ports(2, 64);
  const device::PortChannel port = ports.port(0, 1);
  ports.rank(0).engine->hold(1, true);
  ASSERT_TRUE(port.put(kTeam, 0, 0, 8));
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    ports.rank(0).proxy->drain();
    drained.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // enough for one that would not wait
  EXPECT_FALSE(drained.load());
  ports.rank(0).engine->hold(1, false);
  drain.join();
}

// For room in the ring: PortRing.AbortAndDeadlineEndAWaitForRoom.
TEST(Ports, TheDeadlineEndsAFlushAndAWait) {
  for (const bool flush : {true, false}) {
    HostPorts ports(2, 64, 2);
    const device::PortChannel port = ports.port(0, 1);
    ports.rank(0).engine->hold(1, true);
    ports.rank(0).host.timeout_ns = 20'000'000;
    EXPECT_FALSE(flush ? port.flush(kTeam) : port.wait(kTeam));
    EXPECT_EQ(static_cast<FailureCode>(ports.rank(0).host.code), FailureCode::kTimeout);
    ports.rank(0).engine->hold(1, false);
  }
}

TEST(Ports, EndingCarriesOutWhatIsInTheRing) {
  HostPorts ports(2, 4096, 64);
  for (std::size_t i = 0; i < 4096; ++i) ports.memory(0)[i] = value(0, 1, 1, i);
  const device::PortChannel port = ports.port(0, 1), at = ports.port(1, 0);
  for (std::size_t n = 0; n < 50; ++n) ASSERT_TRUE(port.put(kTeam, n * 64, n * 64, 64));
  ASSERT_TRUE(port.signal(kTeam));
  ports.rank(0).proxy.reset();
  EXPECT_TRUE(at.poll());
  for (std::size_t i = 0; i < 50 * 64; ++i) ASSERT_EQ(ports.memory(1)[i], value(0, 1, 1, i)) << i;
}

TEST(Ports, RemovedMemoryIsNoLongerTouched) {
  HostPorts ports(2, 64);
  device::PortChannel port = ports.port(0, 1);
  {
    std::vector<std::byte> source(64, std::byte{9}), target(64);
    const std::uint32_t number = ports.rank(0).proxy->add_memory({source.data(), target.data()}, 64);
    port.to_memory = port.from_memory = number;
    for (int n = 0; n < 20; ++n) ASSERT_TRUE(port.put(kTeam, 0, 0, 64));
    ports.rank(0).proxy->remove(number, {});
    EXPECT_EQ(target[63], std::byte{9});
  }
  // Freed above: a copy made later would be found by the sanitizers.
  port.to_memory = port.from_memory = ports.memory_number(0);
  ASSERT_TRUE(port.put_with_signal_and_flush(kTeam, 0, 0, 64));
}

TEST(IdlePace, SpinsThenSleepsLongerAndLonger) {
  using std::chrono::microseconds;
  IdlePace pace;
  const IdlePace::Clock::time_point start{microseconds(1'000'000)};
  pace.busy(start);
  EXPECT_EQ(pace.next(start), microseconds(0));
  EXPECT_EQ(pace.next(start + IdlePace::kSpin - microseconds(1)), microseconds(0));
  const auto idle = start + IdlePace::kSpin;
  microseconds last{0};
  for (int n = 0; n < 10; ++n) {
    const microseconds pause = pace.next(idle + microseconds(n));
    EXPECT_GE(pause, std::min(last * 2, IdlePace::kLongest));
    EXPECT_LE(pause, IdlePace::kLongest);
    EXPECT_GT(pause, microseconds(0));
    last = pause;
  }
  EXPECT_EQ(last, IdlePace::kLongest);
  pace.busy(idle);
  EXPECT_EQ(pace.next(idle), microseconds(0));
  EXPECT_LT(pace.next(idle + IdlePace::kSpin), IdlePace::kLongest);
}

}  // namespace
}  // namespace tutti::cuda::test
