// A rank that sleeps on its doorbell is woken by whoever publishes what it waits for, and not by its time slice: the
// sleeper here has none, so a lost wake-up is a wait that outlasts every honest one. Publisher and sleeper are let
// loose at the same moment, again and again, since a wake-up is lost only where a store and a load of each overtake
// each other.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/futex.h"
#include "channel/host_channels.h"

namespace tutti {
namespace {

constexpr std::uint64_t kMostRounds = 300'000;
constexpr std::int64_t kMostNs = 3'000'000'000;   // of the whole test, however few rounds a busy machine makes
constexpr std::int64_t kLostNs = 15'000'000'000;  // a sleep of this length has missed its wake-up
// Steps of a loop by which one side comes before the other: the publisher has the longer way.
constexpr std::uint32_t kSleepersDelay = 12'000;
constexpr std::uint32_t kPublishersDelay = 2'000;
constexpr std::size_t kPayload = 4096;

// What both threads share: the number of the round that may begin, and of the last that has ended.
struct Rounds {
  std::atomic<std::uint64_t> begun{0};
  std::atomic<std::uint64_t> ended{0};
  std::atomic<bool> over{false};

  // False when there will be no such round.
  bool await(const std::atomic<std::uint64_t>& word, std::uint64_t round) const {
    for (int i = 0; word.load(std::memory_order_acquire) < round; ++i) {
      if (over.load(std::memory_order_acquire)) return false;
      if (i < 2000) {
        cpu_relax();
      } else {
        std::this_thread::yield();
      }
    }
    return true;
  }
};

void delay(std::uint32_t steps) {
  for (std::uint32_t i = 0; i < steps; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Lines that the other side has written last: stores behind these wait in the processor until all are fetched, which is
// the time in which a later load may overtake them.
void write_payload(HostChannel& channel, std::uint64_t round) {
  auto* words = reinterpret_cast<std::uint64_t*>(channel.stage(1));
  for (std::size_t i = 0; i < kPayload / sizeof(*words); i += 8) words[i] = round;  // one a line
}

// Linux leaves out of its barrier a processor that was idle with this process's memory when the process registered,
// until another process has run there. The library sleeps shortly first; the sleeper here does not, so another runs
// there.
void visit_all_processors() {
  if (!register_light_barrier()) return;
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const pid_t child = ::fork();
    if (child == 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ::_exit(::sched_setaffinity(0, sizeof one, &one));
    }
    ::waitpid(child, nullptr, 0);
  }
}

// `tell(channel, round)`: makes the round's number visible and wakes. `told(channel)`: the number that the sleeper
// sees.
template <class Tell, class Told>
void expect_no_lost_wake(WaitLane lane, const Tell& tell, const Told& told) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  visit_all_processors();
  MemoryStore store;
  Rounds rounds;
  std::thread publisher([&] {
    const auto channel = test::make_host_channel(store, 1);
    std::mt19937 random(seed);
    for (std::uint64_t round = 1; rounds.await(rounds.begun, round); ++round) {
      delay(random() % kPublishersDelay);
      write_payload(*channel, round);
      tell(*channel, round);
      if (!rounds.await(rounds.ended, round)) return;
    }
  });
  {
    const auto channel = test::make_host_channel(store, 0);
    std::mt19937 random(seed + 1);
    const std::int64_t start = now_ns();
    std::uint64_t slept = 0;
    for (std::uint64_t round = 1; round <= kMostRounds && now_ns() - start < kMostNs; ++round) {
      write_payload(*channel, round);
      rounds.begun.store(round, std::memory_order_release);
      delay(random() % kSleepersDelay);
      bool lost = false;
      while (told(*channel) < round) {
        const std::uint32_t seen = channel->doorbell(lane);
        channel->announce_sleep(lane, true);
        if (told(*channel) < round) {
          const std::int64_t began = now_ns();
          channel->sleep(lane, seen, kLostNs);
          // The publisher has long looked for sleepers; a machine that stood still instead would find the bell rung.
          lost = now_ns() - began >= kLostNs && told(*channel) >= round && channel->doorbell(lane) == seen;
          ++slept;
        }
        channel->announce_sleep(lane, false);
      }
      if (lost) {
        ADD_FAILURE() << "round " << round << ": what was awaited was there, and nobody rang";
        break;
      }
      rounds.ended.store(round, std::memory_order_release);
    }
    EXPECT_TRUE(slept > 0 || rounds.ended < 1'000) << "nobody slept: nothing was tested";
    rounds.over.store(true, std::memory_order_release);
    publisher.join();
  }
}

TEST(HostSleep, NoWakeIsLostByAPublishedStep) {
  expect_no_lost_wake(
      WaitLane::kCollective, [](HostChannel& c, std::uint64_t round) { c.publish(StepLane::kFilled, round); },
      [](HostChannel& c) { return c.stepped(1, StepLane::kFilled); });
}

// As links do: a word of shared memory, then the doorbell of whoever may wait for it.
TEST(HostSleep, NoWakeIsLostByADoorbell) {
  std::atomic<std::uint64_t> word{0};
  expect_no_lost_wake(
      WaitLane::kMessage,
      [&](HostChannel& c, std::uint64_t round) {
        word.store(round, std::memory_order_release);
        c.ring_doorbell(0, WaitLane::kMessage);
      },
      [&](HostChannel&) { return word.load(std::memory_order_acquire); });
}

// Among many, a rank that waits for one straggler would else be woken by each of the others, at each of their steps.
TEST(HostSleep, OnlyTheRankThatIsAwaitedWakes) {
  constexpr WaitLane kLane = WaitLane::kCollective;
  const auto ranks = test::make_host_channels(3);
  HostChannel& sleeper = *ranks[0];
  std::uint32_t seen = sleeper.doorbell(kLane);
  const auto rang = [&] { return std::exchange(seen, sleeper.doorbell(kLane)) != seen; };
  sleeper.announce_sleep(kLane, true, 1);
  ranks[2]->publish(StepLane::kFilled, 1);
  EXPECT_FALSE(rang());
  ranks[1]->publish(StepLane::kFilled, 1);
  EXPECT_TRUE(rang());
  ranks[2]->report({Status::kInternal, 2});
  EXPECT_TRUE(rang()) << "a failure concerns everybody";
  sleeper.announce_sleep(kLane, true);  // whoever comes
  ranks[1]->publish(StepLane::kFilled, 2);
  EXPECT_TRUE(rang());
  sleeper.announce_sleep(kLane, false);
  ranks[1]->publish(StepLane::kFilled, 3);
  EXPECT_FALSE(rang());
}

// A sleeper's barrier would interrupt all of them.
TEST(HostSleep, WhereRanksAreManyPublishersFence) {
  for (const int ranks : {8, 9}) {
    for (const auto& channel : test::make_host_channels(ranks)) {
      EXPECT_EQ(channel->publishers_fence(), ranks == 9 || !register_light_barrier());
    }
  }
}

}  // namespace
}  // namespace tutti
