// The steps by which no wake-up is lost, one by one in one thread: whoever sleeps has raised its flag and made the
// barrier before its last look, and whoever publishes rings those whose flag is up. A lost wake-up itself needs a store
// and a load of each side to overtake each other, which host_sleep_test.cc waits for; a missing step is seen each time.
//
// The barrier and the wakes are system calls, so they are counted where the library makes them: this program's
// syscall() comes before the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "channel/group_waker.h"
#include "channel/host_channels.h"
#include "channel/sim_ports.h"
#include "channel/sleepers.h"
#include "support/lost_wakeups.h"
#include "transport/shm/shm_transport.h"

namespace {

thread_local int barriers = 0;
thread_local int wakes = 0;
// Called with its limit where a thread is about to sleep: after its last look.
thread_local std::function<void(std::int64_t limit_ns)> before_sleep;

}  // namespace

// NOLINTNEXTLINE: the C library's interface
extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  using Call = long (*)(long, ...);
  static std::atomic<Call> found{nullptr};
  Call next = found.load(std::memory_order_relaxed);  // relaxed: every thread finds the same
  if (next == nullptr) {
    next = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "syscall"));
    found.store(next, std::memory_order_relaxed);
  }
  std::array<long, 6> a{};
  va_list list;
  va_start(list, number);
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_membarrier && a[0] == MEMBARRIER_CMD_GLOBAL_EXPEDITED) ++barriers;
  if (number == SYS_futex && a[1] == FUTEX_WAKE) ++wakes;
  if (number == SYS_futex && a[1] == FUTEX_WAIT && before_sleep) {
    const auto* limit = reinterpret_cast<const timespec*>(a[3]);
    before_sleep(limit->tv_sec * 1'000'000'000 + limit->tv_nsec);
  }
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

namespace tutti {
namespace {

class SleepSteps : public testing::Test {
 protected:
  // Whether a publisher would ring this rank now.
  bool flag_is_up(WaitLane lane) {
    const std::uint32_t before = me_->doorbell(lane);
    peer_->ring_doorbell(0, lane);
    return me_->doorbell(lane) != before;
  }

  // What the peer writes, by hand: a step that is there, and no look for sleepers before or after.
  RankControl& of_peer() { return test::small_layout().control(segment(), 1); }
  std::byte* segment() {
    std::byte* const stage = me_->stage(0);
    return stage - (test::small_layout().stage(stage, 0) - stage);
  }

  // Waits for the peer's step `value`, which comes by `tell` when this rank has looked for the last time before its
  // second sleep: what is missed in the first, which is short, does not count.
  void await_step(std::uint64_t value, const std::function<void()>& tell) {
    int sleeps = 0;
    before_sleep = [&](std::int64_t) {
      if (++sleeps == 2) tell();
    };
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    EXPECT_TRUE(me_->await_step(1, StepLane::kFilled, value, deadline).ok());
    before_sleep = nullptr;
    EXPECT_EQ(sleeps, 2);
  }

  // Without the system call all publishers fence, and sleepers need no more than a fence of their own.
  static bool light_barrier() { return register_light_barrier(); }

  const std::vector<std::unique_ptr<HostChannel>> channels_ = test::make_host_channels();
  HostChannel* const me_ = channels_[0].get();
  HostChannel* const peer_ = channels_[1].get();
};

// Asks what stands whenever the wait looks.
class Looks final : public HostChannel::Condition {
 public:
  explicit Looks(std::function<bool()> flag_is_up) : flag_is_up_(std::move(flag_is_up)) {}

  bool holds() noexcept override {
    const bool up = flag_is_up_();
    if (!up) barriers_before_ = barriers;
    if (up && ++with_flag_ > 0 && barriers == barriers_before_) ++unprotected_;
    return with_flag_ == 3;
  }
  int with_flag() const { return with_flag_; }
  int unprotected() const { return unprotected_; }

 private:
  std::function<bool()> flag_is_up_;
  int barriers_before_ = 0;
  int with_flag_ = 0;
  int unprotected_ = 0;
};

TEST_F(SleepSteps, AWaitRaisesTheFlagAndMakesTheBarrierBeforeItsLastLook) {
  Looks looks([this] { return flag_is_up(WaitLane::kCollective); });
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  EXPECT_TRUE(me_->await_condition(1, looks, deadline).ok());
  EXPECT_EQ(looks.with_flag(), 3) << "it slept without a flag";
  if (light_barrier()) {
    EXPECT_EQ(looks.unprotected(), 0) << "looks with the flag up and no barrier behind it";
  }
  EXPECT_FALSE(flag_is_up(WaitLane::kCollective)) << "awake, it is rung for nothing";
}

// All ranks on this host, or others elsewhere: then it may sleep on another thing than its doorbell.
TEST_F(SleepSteps, SoDoesAWaitForMessages) {
  for (const RankMap& map : {RankMap({0, 0}), RankMap({0, 0, 2})}) {
    SCOPED_TRACE(map.ranks());
    GroupWaker waker(me_, map, 0);
    const int before = barriers;
    bool looked = false;
    test::sleep_for(waker, {}, 20'000'000'000, [&] {
      looked = true;
      if (map.one_host()) {
        EXPECT_TRUE(flag_is_up(WaitLane::kMessage));
      }
      if (light_barrier()) {
        EXPECT_GT(barriers, before);
      }
      return false;
    });
    EXPECT_TRUE(looked);
    if (map.one_host()) {
      EXPECT_FALSE(flag_is_up(WaitLane::kMessage));
    }
  }
}

TEST_F(SleepSteps, WhoeverPublishesRingsSleepersAndNobodyElse) {
  CallRecord record;
  record.sequence = 1;
  record.hash = 1;
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  const auto announce = [&] { EXPECT_TRUE(peer_->begin_and_announce(record, deadline).ok()); };
  const auto publish = [&] { peer_->publish(StepLane::kFilled, 1); };
  const auto ring = [&] { peer_->ring_doorbell(0, WaitLane::kMessage); };
  const std::array<std::pair<WaitLane, std::function<void()>>, 3> ways = {
      {{WaitLane::kCollective, announce}, {WaitLane::kCollective, publish}, {WaitLane::kMessage, ring}}};
  for (const auto& [lane, tell] : ways) {
    const std::uint32_t seen = me_->doorbell(lane);
    const int before = wakes;
    me_->announce_sleep(lane, true);
    tell();
    EXPECT_NE(me_->doorbell(lane), seen);
    EXPECT_EQ(wakes, before + 1);
    me_->announce_sleep(lane, false);
    tell();
    EXPECT_EQ(wakes, before + 1);
  }
}

// A processor that the barrier did not reach has its stores out long before the second sleep begins.
TEST_F(SleepSteps, TheFirstSleepIsShortAndTheFlagStaysUp) {
  std::vector<std::int64_t> limits;
  bool flag = true;
  before_sleep = [&](std::int64_t limit_ns) {
    limits.push_back(limit_ns);
    const SegmentHeader& header = test::small_layout().header(segment());
    flag = flag && header.sleeping[0][0].load(std::memory_order_relaxed) != kAwake;
    if (limits.size() == 3) peer_->publish(StepLane::kFilled, 1);
  };
  const int before = barriers;
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  EXPECT_TRUE(me_->await_step(1, StepLane::kFilled, 1, deadline).ok());
  before_sleep = nullptr;
  ASSERT_EQ(limits.size(), 3U);
  EXPECT_LE(limits[0], 1'000'000);
  EXPECT_GT(limits[1], limits[0]);
  EXPECT_TRUE(flag);
  if (light_barrier()) {
    EXPECT_EQ(barriers, before + 1) << "one is enough while the flag is up, and each interrupts every rank";
  }
  EXPECT_FALSE(flag_is_up(WaitLane::kCollective));
}

struct RescuedWait : SleepSteps {
  RescuedWait() { test::may_lose_wakeups(); }  // to count them
};

TEST_F(RescuedWait, IsCountedWhereTheWriterHasPassedWithoutARing) {
  await_step(1, [this] {
    of_peer().publishing[0].value.store(2, std::memory_order_relaxed);
    of_peer().steps[static_cast<int>(StepLane::kFilled)].value.store(1, std::memory_order_release);
  });
  EXPECT_EQ(me_->rescued_waits(), 1U);
  EXPECT_GE(test::lost_wakeups(), 1U) << "what every test is asked for counts nothing";
}

// It may ring yet.
TEST_F(RescuedWait, IsNoneWhileTheWriterPublishes) {
  await_step(1, [this] {
    of_peer().publishing[0].value.store(1, std::memory_order_relaxed);
    of_peer().steps[static_cast<int>(StepLane::kFilled)].value.store(1, std::memory_order_release);
  });
  EXPECT_EQ(me_->rescued_waits(), 0U);
}

TEST_F(RescuedWait, IsNoneAfterARing) {
  for (std::uint64_t step = 1; step < 4; ++step) {
    await_step(step, [&] { peer_->publish(StepLane::kFilled, step); });
  }
  EXPECT_EQ(me_->rescued_waits(), 0U);
}

// Of several that may bring it: each is asked.
class Brought final : public HostChannel::Condition {
 public:
  explicit Brought(const std::atomic<bool>& there) : there_(there) {}
  bool holds() noexcept override { return there_.load(std::memory_order_acquire); }

 private:
  const std::atomic<bool>& there_;
};

class RescuedWaitForAny : public RescuedWait {
 protected:
  // Rescued waits of a wait for anybody; what it waits for comes by `tell`, when it has looked for the last time before
  // its second sleep.
  std::uint64_t rescued_by(const std::function<void()>& tell) {
    int sleeps = 0;
    std::atomic<bool> there{false};
    before_sleep = [&](std::int64_t) {
      if (++sleeps != 2) return;
      there.store(true, std::memory_order_release);
      tell();
    };
    Brought brought(there);
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    EXPECT_TRUE(me_->await_condition(-1, brought, deadline).ok());
    before_sleep = nullptr;
    return me_->rescued_waits();
  }
};

TEST_F(RescuedWaitForAny, IsCountedWhereOneHasPassedWithoutARing) {
  EXPECT_EQ(rescued_by([this] { const HostChannel::Publishing passing(peer_); }), 1U);
}

TEST_F(RescuedWaitForAny, IsNoneWhileOneIsAtIt) {
  peer_->begin_publishing(WaitLane::kCollective);
  EXPECT_EQ(rescued_by([] {}), 0U);
  peer_->end_publishing(WaitLane::kCollective);
}

TEST_F(RescuedWaitForAny, IsNoneWhereNobodyHasPublished) {
  EXPECT_EQ(rescued_by([] {}), 0U);
}

TEST_F(RescuedWaitForAny, IsNoneAfterARing) {
  EXPECT_EQ(rescued_by([this] {
              const HostChannel::Publishing publishing(peer_);
              peer_->ring_doorbell(0, WaitLane::kCollective);
            }),
            0U);
}

// A rank's ways to others, with a waker whose bells and nudges can be taken away.
class Port {
 public:
  Port(HostChannel& channel, int rank)
      : waker_(&channel, rank),
        transport_({.index = rank,
                    .rank_of_index = {0, 1},
                    .ring_capacity = kLinkSlack,
                    .ring_memory = [&channel](int from, int to) { return channel.ring(from, to); },
                    .liveness = {}}),
        port_(rank, 2,
              rank == 0 ? std::vector<Transport*>{nullptr, &transport_} : std::vector<Transport*>{&transport_, nullptr},
              &waker_, 0) {}

  MessagePort& operator*() { return port_; }
  MessagePort* operator->() { return &port_; }
  void silence(bool on = true) { waker_.silent.store(on, std::memory_order_relaxed); }
  void drive() {
    while (port_.progress()) {
    }
  }
  PortWaker& waker() { return waker_; }

 private:
  class Waker final : public PortWaker {
   public:
    Waker(HostChannel* channel, int rank) : waker_(channel, RankMap({0, 0}), rank) {}
    bool sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns, Sleeper& sleeper) noexcept override {
      return waker_.sleep(fds, timeout_ns, sleeper);
    }
    void nudge() noexcept override {
      if (!silent.load(std::memory_order_relaxed)) waker_.nudge();
    }
    void ring(int peer) noexcept override {
      if (!silent.load(std::memory_order_relaxed)) waker_.ring(peer);
    }
    void begin_publishing() noexcept override { waker_.begin_publishing(); }
    void end_publishing() noexcept override { waker_.end_publishing(); }
    Outcome check(int peer) noexcept override { return waker_.check(peer); }

    std::atomic<bool> silent{false};

   private:
    GroupWaker waker_;
  };

  Waker waker_;
  ShmTransport transport_;
  MessagePort port_;
};

// Rank 0 waits for a message; what brings it happens when it has looked for the last time before it sleeps for long.
class RescuedWaitForMessages : public RescuedWait {
 protected:
  std::uint64_t rescued_by(const std::function<void()>& tell) {
    test::Parcel in(8);
    in.recv(*zero_, 1, 1);
    return rescued(in.op, tell);
  }
  std::uint64_t rescued(MessageOp& op, const std::function<void()>& tell) {
    int sleeps = 0;
    const int last = light_barrier() ? 2 : 1;
    before_sleep = [&](std::int64_t) {
      if (++sleeps != last) return;
      const auto again = std::exchange(before_sleep, nullptr);  // what it does may sleep
      tell();
    };
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    EXPECT_TRUE(zero_->wait(op, deadline).ok());
    before_sleep = nullptr;
    EXPECT_EQ(sleeps, last);
    return zero_->rescued_waits();
  }
  void send() { out_.send(*one_, 0, 1); }

  Port zero_{*me_, 0}, one_{*peer_, 1};
  test::Parcel out_{8};
};

TEST_F(RescuedWaitForMessages, IsCountedWhereItsWriterHasNotRung) {
  one_.silence();
  EXPECT_EQ(rescued_by([this] { send(); }), 1U);
}

TEST_F(RescuedWaitForMessages, IsNoneWhileItsWriterIsAtIt) {
  one_.silence();
  one_.waker().begin_publishing();
  EXPECT_EQ(rescued_by([this] { send(); }), 0U);
  one_.waker().end_publishing();
}

TEST_F(RescuedWaitForMessages, IsNoneAfterARing) {
  EXPECT_EQ(rescued_by([this] { send(); }), 0U);
}

// Another thread of the rank has completed it.
TEST_F(RescuedWaitForMessages, IsCountedWhereARanksOwnThreadHasNotNudged) {
  for (const bool with_callback : {false, true}) {
    test::Parcel in(8);
    if (with_callback) in.op.on_done = [](MessageOp&) {};
    in.recv(*zero_, 1, 1);
    const std::uint64_t before = zero_->rescued_waits();
    one_.silence();
    zero_.silence();
    EXPECT_EQ(rescued(in.op,
                      [this] {
                        send();
                        zero_.drive();
                      }),
              before + 1);
  }
}

TEST_F(RescuedWaitForMessages, IsNoneAfterANudge) {
  one_.silence();
  EXPECT_EQ(rescued_by([this] {
              send();
              zero_.drive();
            }),
            0U);
}

// A callback of it is still to be called, or has just been: the nudge comes behind it.
TEST_F(RescuedWaitForMessages, IsNoneBeforeTheNudgeIsDue) {
  zero_.silence();
  one_.silence();
  test::Parcel in(8), other(8);
  std::thread driver;
  std::atomic<bool> called{false}, go_on{false};
  other.op.on_done = [&](MessageOp&) {
    called.store(true, std::memory_order_release);
    while (!go_on.load(std::memory_order_acquire)) std::this_thread::yield();
  };
  other.recv(*zero_, 1, 2);
  in.recv(*zero_, 1, 1);
  const std::uint64_t rescued_then = rescued(in.op, [&] {
    send();
    test::Parcel second(8);
    second.send(*one_, 0, 2);
    driver = std::thread([this] { zero_.drive(); });
    while (!called.load(std::memory_order_acquire)) std::this_thread::yield();
  });
  EXPECT_EQ(rescued_then, 0U);
  go_on.store(true, std::memory_order_release);
  driver.join();
}

// A writer that waits for room.
TEST_F(RescuedWaitForMessages, IsCountedWhereAReaderHasNotRung) {
  test::Parcel out(test::pattern(1, 1 << 20)), in(1 << 20);
  in.recv(*one_, 0, 1);
  out.send(*zero_, 1, 1);
  one_.drive();  // its grant
  one_.silence();
  std::thread reader;
  EXPECT_EQ(rescued(out.op,
                    [&] {
                      one_.drive();
                      reader = std::thread([&] {
                        while (zero_->rescued_waits() == 0) std::this_thread::yield();
                        one_.silence(false);
                        while (!in.op.done()) one_.drive();
                      });
                    }),
            1U);
  reader.join();
  EXPECT_EQ(in.data, out.data);
}

// The writer has filled the ring, and the rest of its message fits once that is read.
TEST_F(RescuedWaitForMessages, IsNoneAfterARingForRoom) {
  test::Parcel out(test::pattern(1, kLinkSlack + 1000)), in(kLinkSlack + 1000);
  in.recv(*one_, 0, 1);
  out.send(*zero_, 1, 1);
  EXPECT_EQ(rescued(out.op, [this] { one_.drive(); }), 0U);
  one_.drive();
  EXPECT_EQ(in.data, out.data);
}

// What lies beside an announcement is there for whoever has seen the announcement. On processors that keep the order of
// stores a missing release shows under the thread sanitizer only; the ranks poll, since a doorbell would order them
// too.
TEST(HostOrder, WhatIsAnnouncedIsThere) {
  constexpr std::uint64_t kCalls = 50;
  constexpr std::size_t kWords = 256;  // in the slot; and one within the announcement's cell, every other call
  WaitPolicy polling;
  polling.yields = 100'000'000;
  MemoryStore store;
  const auto rank_main = [&](int rank) {
    const auto channel = test::make_host_channel(store, rank, 2, polling);
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    for (std::uint64_t call = 1; call <= kCalls; ++call) {
      const std::size_t words = call % 2 == 0 ? kWords : 1;
      CallRecord record;
      record.sequence = call;
      record.hash = 1;
      ASSERT_TRUE(channel->begin(record, deadline).ok());
      auto* mine = reinterpret_cast<std::uint64_t*>(channel->payload_area(words * 8));
      std::fill_n(mine, words, call * 2 + static_cast<std::uint64_t>(rank));
      channel->announce();
      ASSERT_TRUE(channel->await_records(deadline).ok());
      const auto* theirs = reinterpret_cast<const std::uint64_t*>(channel->peer_payload(1 - rank, words * 8));
      const std::uint64_t wanted = call * 2 + static_cast<std::uint64_t>(1 - rank);
      ASSERT_EQ(std::count(theirs, theirs + words, wanted), static_cast<std::ptrdiff_t>(words)) << "call " << call;
    }
  };
  std::thread other([&] { rank_main(1); });
  rank_main(0);
  other.join();
}

}  // namespace
}  // namespace tutti
