// Waiting, sleeping and driving with real threads and processes over shared rings.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "channel/shm_ports.h"
#include "channel/sim_ports.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

// A bound for what must not hang, far above what it takes.
Deadline bound() { return Deadline::after(60s); }

void expect_ok(MessagePort& port, Parcel& parcel) {
  Deadline deadline = bound();
  const Outcome outcome = port.wait(parcel.op, deadline);
  ASSERT_EQ(outcome.status, Status::kOk);
}

// Sizes around everything that could matter, in both directions at once, every byte checked.
void exchange_sizes(MessagePort& port, int rank) {
  const int peer = 1 - rank;
  std::uint64_t seed = 1;
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{0}, std::size_t{777}, kEagerBytes, kEagerBytes + 1,
                                  std::size_t{65536}, std::size_t{65537}, std::size_t{3'000'001}}) {
    for (int round = 0; round < 5; ++round, ++seed) {
      Parcel out(pattern(seed * 2 + static_cast<std::uint64_t>(rank), bytes)), in(bytes);
      out.send(port, peer, seed);
      in.recv(port, peer, seed);
      expect_ok(port, out);
      expect_ok(port, in);
      ASSERT_EQ(in.data, pattern(seed * 2 + static_cast<std::uint64_t>(peer), bytes));
    }
  }
}

void ping_pong(MessagePort& port, int rank, int rounds) {
  std::uint64_t value = 0;
  for (int i = 0; i < rounds; ++i) {
    for (const int sender : {0, 1}) {
      MessageOp op;
      Deadline deadline = bound();
      if (rank == sender) {
        ++value;
        port.post_send(op, 1 - rank, 1, &value, sizeof value, record_of(kCallSend, 8));
      } else {
        const std::uint64_t before = value;
        port.post_recv(op, 1 - rank, 1, &value, sizeof value, record_of(kCallRecv, 8));
        ASSERT_TRUE(port.wait(op, deadline).ok());
        ASSERT_EQ(value, before + 1);
      }
      ASSERT_TRUE(port.wait(op, deadline).ok());
    }
  }
}

template <class Body>
void run_threads(int ranks, const Body& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& t : threads) t.join();
}

template <class Body>
void run_processes(int ranks, const Body& body) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) pids.push_back(fork_rank([&] { body(rank); }));
  for (const pid_t pid : pids) expect_clean_exit(pid);
}

// `spins` 0 sleeps before every message, so that a lost wake shows as 100 ms a message.
TEST(MessageWait, ProcessesExchangeAllSizes) {
  for (const std::uint32_t spins : {0U, 1000U}) {
    ShmPorts ports(2);
    run_processes(2, [&](int rank) {
      ShmPorts::Rank self(ports, rank, spins);
      exchange_sizes(self.port, rank);
    });
  }
}

TEST(MessageWait, ProcessesPlayPingPong) {
  ShmPorts ports(2);
  run_processes(2, [&](int rank) {
    ShmPorts::Rank self(ports, rank, 1000);
    ping_pong(self.port, rank, 2000);
  });
}

TEST(MessageWait, ThreadsExchangeOverSmallRings) {
  ShmPorts ports(2, kLinkSlack);
  run_threads(2, [&](int rank) {
    ShmPorts::Rank self(ports, rank, 0);
    exchange_sizes(self.port, rank);
    ping_pong(self.port, rank, 100);
  });
}

TEST(MessageWait, RingOfManyRanksWithRareSlices) {
  constexpr int kRanks = 8;  // more links than a waiting thread looks at in every pass
  ShmPorts ports(kRanks);
  run_threads(kRanks, [&](int rank) {
    ShmPorts::Rank self(ports, rank, 50);
    for (std::uint64_t round = 0; round < 30; ++round) {
      const std::size_t bytes = round % 3 == 0 ? 100'000 : 100;
      Parcel out(pattern(round * 100 + static_cast<std::uint64_t>(rank), bytes)), in(bytes);
      const int from = (rank + kRanks - 1) % kRanks;
      out.send(self.port, (rank + 1) % kRanks, 1);
      in.recv(self.port, from, 1);
      expect_ok(self.port, in);
      expect_ok(self.port, out);
      ASSERT_EQ(in.data, pattern(round * 100 + static_cast<std::uint64_t>(from), bytes));
    }
  });
}

TEST(MessageWait, TimeoutLeavesTheOpPosted) {
  ShmPorts ports(2);
  ShmPorts::Rank zero(ports, 0, 10), one(ports, 1, 10);
  Parcel in(8), out(pattern(1, 8));
  in.recv(zero.port, 1, 1);
  Deadline soon = Deadline::after(1ms);
  const Outcome outcome = zero.port.wait(in.op, soon);
  EXPECT_EQ(outcome.status, Status::kTimeout);
  EXPECT_EQ(outcome.peer, 1);
  EXPECT_EQ(zero.port.pending(), 1);
  out.send(one.port, 0, 1);
  expect_ok(zero.port, in);
  EXPECT_EQ(in.data, out.data);
}

// What is asked may do what it waits for, and have nothing more to say when it is asked again.
TEST(MessageWait, DrivingEndsWhenItIsToldOnce) {
  ShmPorts ports(2);
  ShmPorts::Rank zero(ports, 0, 0);
  for (int yes = 1; yes <= 4; ++yes) {  // the second time is just before it sleeps
    int asked = 0;
    zero.port.drive([&] { return ++asked == yes || asked > 20; });
    EXPECT_EQ(asked, yes);
  }
}

TEST(MessageWait, FailWakesSleepers) {
  ShmPorts ports(2);
  ShmPorts::Rank zero(ports, 0, 0);
  Parcel in(8);
  in.recv(zero.port, 1, 1);
  std::thread failing([&] { zero.port.fail({Status::kAborted, 0}); });
  Deadline deadline = bound();
  EXPECT_EQ(zero.port.wait(in.op, deadline).status, Status::kAborted);
  failing.join();
}

TEST(MessageWait, DeadPeerEndsASleepingWait) {
  ShmPorts ports(2);
  const pid_t pid = fork_rank([&] {
    ShmPorts::Rank self(ports, 1, 10);
    Parcel last(pattern(1, 100));
    last.send(self.port, 0, 1);
    ports.rings().leave(1);
  });
  ShmPorts::Rank zero(ports, 0, 10);
  Parcel last(100), never(8);
  never.recv(zero.port, 1, 2);
  Deadline deadline = bound();
  const Outcome outcome = zero.port.wait(never.op, deadline);
  EXPECT_EQ(outcome.status, Status::kPeerLost);
  EXPECT_EQ(outcome.peer, 1);
  last.recv(zero.port, 1, 1);
  EXPECT_TRUE(last.ok()) << "it had arrived before the end";
  expect_clean_exit(pid);
}

// Several threads wait for messages of one port: whoever drives completes the others' ops and must wake them.
TEST(MessageWait, ThreadsOfOneRankWaitAtOnce) {
  constexpr int kThreads = 4;
  for (const std::uint32_t spins : {0U, 100U}) {
    ShmPorts ports(2);
    ShmPorts::Rank zero(ports, 0, spins), one(ports, 1, spins);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      for (ShmPorts::Rank* self : {&zero, &one})
        threads.emplace_back([&, t, self] {
          const int peer = self == &zero ? 1 : 0;
          for (std::uint64_t i = 0; i < 40; ++i) {
            const auto tag = static_cast<std::uint64_t>(t);
            const std::size_t bytes = i % 4 == 0 ? 100'000 : 50;
            Parcel out(pattern(i * 10 + tag, bytes)), in(bytes);
            in.recv(self->port, peer, tag);
            out.send(self->port, peer, tag);
            expect_ok(self->port, in);
            expect_ok(self->port, out);
            ASSERT_EQ(in.data, out.data);
          }
        });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(zero.port.pending() + one.port.pending(), 0);
  }
}

// A progress thread a rank; the ranks themselves only post, and wait for their callbacks.
TEST(MessageDrive, ProgressThreadsCompleteEverything) {
  constexpr int kMessages = 60;
  ShmPorts ports(2);
  run_threads(2, [&](int rank) {
    ShmPorts::Rank self(ports, rank, 20);
    std::atomic<bool> stop{false};
    std::atomic<int> done{0};
    std::thread progress([&] { self.port.drive([&] { return stop.load(std::memory_order_acquire); }); });
    std::vector<std::unique_ptr<Parcel>> out, in;
    for (int i = 0; i < kMessages; ++i) {
      const std::size_t bytes = i % 3 == 0 ? 100'000 : 40;
      out.push_back(std::make_unique<Parcel>(pattern(static_cast<std::uint64_t>(i), bytes)));
      in.push_back(std::make_unique<Parcel>(bytes));
      for (Parcel* p : {out.back().get(), in.back().get()})
        // release: pairs with the acquire below; the payloads are checked after it.
        p->op.on_done = [&](MessageOp&) { done.fetch_add(1, std::memory_order_release); };
      in.back()->recv(self.port, 1 - rank, 1);
      out.back()->send(self.port, 1 - rank, 1);
    }
    Deadline deadline = bound();
    while (done.load(std::memory_order_acquire) < 2 * kMessages && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(done.load(std::memory_order_acquire), 2 * kMessages);
    // The other rank may still wait for something that only our progress thread sends.
    Parcel bye_out(1), bye_in(1);
    bye_in.recv(self.port, 1 - rank, 2);
    bye_out.send(self.port, 1 - rank, 2);
    expect_ok(self.port, bye_in);
    expect_ok(self.port, bye_out);
    stop.store(true, std::memory_order_release);
    ports.waker(rank).nudge();
    progress.join();
    for (int i = 0; i < kMessages; ++i) {
      const auto k = static_cast<std::size_t>(i);
      ASSERT_TRUE(in[k]->ok() && out[k]->ok());
      ASSERT_EQ(in[k]->data, out[k]->data);
    }
  });
}

// cancel() against a thread that drives at the same time: whichever is first, the memory is ours afterwards.
TEST(MessageDrive, CancelRacesWithProgress) {
  ShmPorts ports(2);
  ShmPorts::Rank zero(ports, 0, 0), one(ports, 1, 0);
  std::atomic<bool> stop{false};
  auto drive = [&](ShmPorts::Rank& self) { self.port.drive([&] { return stop.load(std::memory_order_acquire); }); };
  std::thread drive0([&] { drive(zero); }), drive1([&] { drive(one); });
  std::mt19937 random(1);
  for (std::uint64_t i = 0; i < 150; ++i) {
    const std::size_t bytes = i % 2 == 0 ? 200 : 100'000;
    Parcel out(pattern(i, bytes)), in(bytes);
    int calls = 0;
    in.op.on_done = [&](MessageOp&) { ++calls; };
    in.recv(one.port, 0, i);
    out.send(zero.port, 1, i);
    for (unsigned k = random() % 50; k > 0; --k) std::this_thread::yield();
    one.port.cancel(in.op);
    ASSERT_TRUE(in.op.done());
    EXPECT_EQ(calls, in.ok() ? 1 : 0);
    if (in.ok()) {
      EXPECT_EQ(in.data, pattern(i, bytes));
    }
    std::fill(in.data.begin(), in.data.end(), std::byte{1});
    zero.port.cancel(out.op);
    std::fill(out.data.begin(), out.data.end(), std::byte{2});
  }
  stop.store(true, std::memory_order_release);
  ports.waker(0).nudge();
  ports.waker(1).nudge();
  drive0.join();
  drive1.join();
}

}  // namespace
}  // namespace tutti::test
