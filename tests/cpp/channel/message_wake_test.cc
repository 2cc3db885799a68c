// Nobody may sleep on: who must be woken is, at once, and not by the end of a slice.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "channel/poll_waker.h"
#include "channel/sim_ports.h"
#include "channel/sleepers.h"
#include "transport/shm_world.h"

namespace tutti::test {
namespace {

constexpr std::int64_t kWatchdogNs = 20'000'000'000;  // nobody who is woken sleeps so long

// Sleeps until nudged, whatever the port asked for; counts who was rung.
class StrictWaker final : public PortWaker {
 public:
  bool sleep(const std::vector<pollfd>&, std::int64_t, Sleeper& sleeper) noexcept override {
    std::unique_lock lock(mutex_);
    const int seen = nudges_;
    lock.unlock();
    if (!sleeper.may_sleep()) return false;
    lock.lock();
    asleep_ = true;
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [&] { return nudges_ != seen; })) missed_ = true;
    asleep_ = false;
    return false;
  }
  void nudge() noexcept override {
    const std::lock_guard lock(mutex_);
    ++nudges_;
    changed_.notify_all();
  }
  void ring(int peer) noexcept override { ++rung[peer]; }
  Outcome check(int) noexcept override { return kOkOutcome; }

  void await_sleeper() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return asleep_; }));
  }
  bool missed() {
    const std::lock_guard lock(mutex_);
    return missed_;
  }

  int rung[2] = {};  // under the port's lock

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int nudges_ = 0;
  bool asleep_ = false;
  bool missed_ = false;
};

struct TwoRanks {
  TwoRanks() : rings(2, 65536), shm0(rings.options(0)), shm1(rings.options(1)) {}

  SharedRings rings;
  ShmTransport shm0, shm1;
  StrictWaker waker0, waker1;
  MessagePort zero{0, 2, {nullptr, &shm0}, &waker0, 0};
  MessagePort one{1, 2, {&shm1, nullptr}, &waker1, 0};
};

// One thread sleeps in wait(), another drives and completes its op.
TEST(MessageWake, WhoCompletesAnothersOpWakesItsWaiter) {
  for (const bool with_callback : {false, true}) {
    TwoRanks ranks;
    Parcel in(8), out(pattern(1, 8));
    if (with_callback) in.op.on_done = [](MessageOp&) {};
    in.recv(ranks.zero, 1, 1);
    std::thread waiter([&] {
      Deadline never = Deadline::never();
      EXPECT_TRUE(ranks.zero.wait(in.op, never).ok());
    });
    ranks.waker0.await_sleeper();
    out.send(ranks.one, 0, 1);
    while (ranks.zero.progress()) {
    }
    waiter.join();
    EXPECT_FALSE(ranks.waker0.missed());
  }
}

TEST(MessageWake, FailAndCancelWakeTheWaiter) {
  for (const bool fail : {false, true}) {
    TwoRanks ranks;
    Parcel in(8);
    in.recv(ranks.zero, 1, 1);
    std::thread waiter([&] {
      Deadline never = Deadline::never();
      EXPECT_EQ(ranks.zero.wait(in.op, never).status, Status::kAborted);
    });
    ranks.waker0.await_sleeper();
    fail ? ranks.zero.fail({Status::kAborted, -1}) : ranks.zero.cancel(in.op);
    waiter.join();
    EXPECT_FALSE(ranks.waker0.missed());
  }
}

TEST(MessageWake, WriterRingsTheReader) {
  TwoRanks ranks;
  Parcel out(8);
  out.send(ranks.zero, 1, 1);
  EXPECT_EQ(ranks.waker0.rung[1], 1);
}

// A writer that found the link full sleeps: whoever makes room rings although it writes nothing.
TEST(MessageWake, ReaderRingsTheWriterThatWaitsForRoom) {
  TwoRanks ranks;
  Parcel out(pattern(1, 1 << 20)), in(1 << 20);
  in.recv(ranks.one, 0, 1);
  out.send(ranks.zero, 1, 1);
  while (in.op.phase != MessagePhase::kIncoming) ranks.one.progress();
  while (!in.op.done()) {
    while (ranks.zero.progress()) {  // until the ring is full or all is written
    }
    const int before = ranks.waker1.rung[0];
    ASSERT_TRUE(ranks.one.progress());
    if (!out.op.done()) {
      ASSERT_GT(ranks.waker1.rung[0], before);
    }
  }
  EXPECT_EQ(in.data, out.data);
}

// Links with a descriptor each, which take what is written and never give anything.
class SilentTransport final : public Transport {
 public:
  // `connecting`: none stands yet.
  explicit SilentTransport(bool connecting = false) : connecting_(connecting) {
    for (SilentLink& link : links_) link.stands = !connecting;
  }
  std::string_view name() const noexcept override { return "silent"; }
  Link* link(int peer) noexcept override { return &links_[static_cast<std::size_t>(peer)]; }
  bool connects() const noexcept override { return connecting_; }
  int accept_new(std::span<int> peers) noexcept override {
    if (told_ >= 0) peers[0] = told_;
    return std::exchange(told_, -1) >= 0 ? 1 : 0;
  }
  // Something lies there from then on; and it is told of, which comes afterwards.
  void stand(int peer) { links_[static_cast<std::size_t>(peer)].stands = true; }
  void tell(int peer) { told_ = peer; }
  int looks(int peer) const { return links_[static_cast<std::size_t>(peer)].looks; }

 private:
  struct SilentLink final : Link {
    std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override { return head.size() + body.size(); }
    std::size_t read_some(MutableBytes) noexcept override { return ++looks, 0; }
    Status status() const noexcept override { return Status::kOk; }
    int poll_fd() const noexcept override { return stands ? fd.get() : -1; }
    bool has_input() const noexcept override { return stands; }
    UniqueFd fd{::eventfd(0, EFD_CLOEXEC)};
    int looks = 0;
    bool stands = true;
  };
  const bool connecting_;
  int told_ = -1;
  std::array<SilentLink, 3> links_;
};

// Each look at a socket is a system call. A long wait that is made of short ones polls at its beginning only.
TEST(MessageWake, AWaitThatGoesOnDoesNotPollAnew) {
  constexpr std::int64_t kSpinNs = 1'000'000;
  SilentTransport silent;
  StrictWaker waker;
  MessagePort port(0, 2, {nullptr, &silent}, &waker, kSpinNs);
  Parcel in(8), out(8);
  in.recv(port, 1, 1);
  out.send(port, 1, 1);  // opens the link
  Deadline now = Deadline::after(std::chrono::milliseconds(0));
  EXPECT_EQ(port.wait(in.op, now).status, Status::kTimeout);
  const int before = silent.looks(1);
  EXPECT_GT(before, 2);
  EXPECT_EQ(port.wait(in.op, now, true).status, Status::kTimeout);
  EXPECT_LE(silent.looks(1), before + 2);
  port.cancel(in.op);
}

// Does something just before a sleep begins, as another thread may, and notes what would have been slept on.
class MeddlingWaker final : public PortWaker {
 public:
  bool sleep(const std::vector<pollfd>& fds, std::int64_t, Sleeper& sleeper) noexcept override {
    if (before_sleep) std::exchange(before_sleep, nullptr)();
    sleeps.emplace_back(fds.size(), sleeper.may_sleep());
    if (sleeps.back().second && asleep) asleep(sleeper);
    return false;
  }
  void nudge() noexcept override {}
  void ring(int) noexcept override {}
  Outcome check(int) noexcept override { return kOkOutcome; }

  std::function<void()> before_sleep;
  std::function<void(Sleeper&)> asleep;
  std::vector<std::pair<std::size_t, bool>> sleeps;  // descriptors, and whether it slept
};

// The nudge that says so comes before anybody counts as asleep.
TEST(MessageWake, NobodySleepsOnDescriptorsThatHaveChanged) {
  SilentTransport silent;
  MeddlingWaker waker;
  MessagePort port(0, 3, {nullptr, &silent, &silent}, &waker, 0);
  Parcel to_one(8), to_two(8), in(8);
  to_one.send(port, 1, 1);
  in.recv(port, 1, 1);
  waker.before_sleep = [&] { to_two.send(port, 2, 1); };
  waker.asleep = [&](PortWaker::Sleeper&) { port.fail({Status::kAborted, -1}); };
  Deadline bound = Deadline::after(std::chrono::seconds(60));
  EXPECT_EQ(port.wait(in.op, bound).status, Status::kAborted);
  const std::vector<std::pair<std::size_t, bool>> expected = {{1, false}, {2, true}};
  EXPECT_EQ(waker.sleeps, expected);
}

// A link stands before its transport tells of it: who does that is about to wake the sleeper.
TEST(MessageWake, WhatIsAboutToBeToldOfALinkIsNotMissed) {
  SilentTransport silent(true);
  MeddlingWaker waker;
  MessagePort port(0, 2, {nullptr, &silent}, &waker, 0);
  Parcel out(8), in(8);
  out.send(port, 1, 1);
  in.recv(port, 1, 1);
  std::vector<bool> missed;
  waker.asleep = [&](PortWaker::Sleeper& sleeper) {
    silent.stand(1);
    missed.push_back(sleeper.has_missed());
    silent.tell(1);
    if (missed.size() == 2) port.fail({Status::kAborted, -1});
  };
  Deadline bound = Deadline::after(std::chrono::seconds(60));
  EXPECT_EQ(port.wait(in.op, bound).status, Status::kAborted);
  EXPECT_EQ(missed, (std::vector<bool>{false, true}));
  EXPECT_EQ(waker.sleeps.back().first, 1U) << "a link that stands is not polled";
}

// The poller takes a nudge that comes while another thread is about to sleep: that one must not sleep.
TEST(PollWaker, ANudgeTakenByThePollerIsOneForAll) {
  PollWaker waker;
  std::atomic<bool> polls{false};
  std::thread poller([&] {
    sleep_for(waker, {}, kWatchdogNs, [&] {
      polls.store(true, std::memory_order_release);  // release: pairs with the acquire below
      return true;
    });
  });
  while (!polls.load(std::memory_order_acquire)) std::this_thread::yield();
  const std::int64_t start = now_ns();
  sleep_for(waker, {}, kWatchdogNs, [&] {
    waker.nudge();
    poller.join();
    return true;
  });
  EXPECT_LT(now_ns() - start, kWatchdogNs);
}

// What the poller polled for may be another's: it wakes whoever waits for it to end.
TEST(PollWaker, WhoPolledWakesTheOthers) {
  constexpr int kRounds = 20;
  for (int i = 0; i < kRounds; ++i) {
    PollWaker waker;
    const UniqueFd event(::eventfd(0, EFD_CLOEXEC));
    const std::vector<pollfd> fds{{event.get(), POLLIN, 0}};
    std::atomic<int> about{0};
    const auto sleeper = [&] {
      sleep_for(waker, fds, kWatchdogNs, [&] {
        about.fetch_add(1, std::memory_order_release);  // release: pairs with the acquire below
        return true;
      });
    };
    const std::int64_t start = now_ns();
    std::thread first(sleeper), second(sleeper);
    while (about.load(std::memory_order_acquire) < 2) std::this_thread::yield();
    for (int k = 0; k < 1000; ++k) std::this_thread::yield();  // most often both sleep by then; right if not
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(event.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    first.join();
    second.join();
    ASSERT_LT(now_ns() - start, kWatchdogNs) << "round " << i;
  }
}

}  // namespace
}  // namespace tutti::test
