// When compiled plans may be loaded, and for whom; when leftovers are given back.
#include "communicator/cuda/quiet_device.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "device/cuda/leftovers.h"

namespace tutti::cuda {
namespace {

struct Communicator {
  explicit Communicator(int device) {
    member = {device, &calls, [this] { return idle; }, [this] { ++loads; }};
    QuietDevice::of_process().add(&member);
  }
  ~Communicator() { QuietDevice::of_process().remove(&member); }
  void call() {
    const std::lock_guard lock(calls);
    QuietDevice::of_process().load_if_quiet(member);
  }

  std::mutex calls;
  bool idle = true;
  int loads = 0;
  QuietDevice::Member member;
};

TEST(QuietDevice, WhoMakesACallLoadsForAllOfItsDevice) {
  Communicator a(0), b(0), other(1);
  a.call();
  EXPECT_EQ(a.loads, 1);
  EXPECT_EQ(b.loads, 1);
  EXPECT_EQ(other.loads, 0);
}

TEST(QuietDevice, NothingIsLoadedBesideACallUnderWayOnTheDevice) {
  Communicator a(0), b(0), other(1);
  b.idle = false;
  a.call();
  b.call();
  EXPECT_EQ(a.loads + b.loads, 0);
  other.call();
  EXPECT_EQ(other.loads, 1);
}

TEST(QuietDevice, NothingIsLoadedWhileAnotherIssues) {
  Communicator a(0), b(0);
  const std::lock_guard issuing(b.calls);
  std::thread([&] { a.call(); }).join();
  EXPECT_EQ(a.loads + b.loads, 0);
}

TEST(QuietDevice, KnowsWhetherAnythingWaits) {
  QuietDevice& quiet = QuietDevice::of_process();
  EXPECT_FALSE(quiet.any_waits());
  quiet.count(2);
  quiet.count(-1);
  EXPECT_TRUE(quiet.any_waits());
  quiet.count(-1);
  EXPECT_FALSE(quiet.any_waits());
}

TEST(QuietDevice, LeftoversAreGivenBackWhereNothingIsUnderWayAnywhere) {
  Communicator a(0), other(1);
  int given = 0;
  leave(Leftover::kOwn, 0, [&] { ++given; });
  other.idle = false;
  QuietDevice::of_process().give_back_if_quiet();
  EXPECT_EQ(given, 0);
  other.idle = true;
  {
    const std::lock_guard issuing(a.calls);
    std::thread([] { QuietDevice::of_process().give_back_if_quiet(); }).join();
  }
  EXPECT_EQ(given, 0);
  EXPECT_EQ(leftovers().things, 1u);
  QuietDevice::of_process().give_back_if_quiet();
  EXPECT_EQ(given, 1);
  EXPECT_EQ(leftovers().things, 0u);
}

TEST(QuietDevice, SoManyLeftoversAreGivenBackWhateverRuns) {
  Communicator busy(0);
  busy.idle = false;
  std::size_t given = 0;
  for (std::size_t i = 0; i < QuietDevice::kMostLeftovers; ++i) leave(Leftover::kOwn, 0, [&] { ++given; });
  QuietDevice::of_process().give_back_if_quiet();
  EXPECT_EQ(given, 0u);
  leave(Leftover::kMapping, 0, [&] { ++given; });
  QuietDevice::of_process().give_back_if_quiet();
  EXPECT_EQ(given, QuietDevice::kMostLeftovers + 1);
  leave(Leftover::kOwn, QuietDevice::kMostLeftoverBytes, [&] { given = 0; });
  QuietDevice::of_process().give_back_if_quiet();
  EXPECT_NE(given, 0u);
  leave(Leftover::kOwn, 1, [] {});
  QuietDevice::of_process().give_back_if_quiet();
  EXPECT_EQ(given, 0u);
}

// Who gives back mappings waits for the device anyway; what else is left need not go by that.
TEST(QuietDevice, MappingsAreGivenBackByThemselves) {
  int mappings = 0, own = 0;
  leave(Leftover::kOwn, 0, [&] { ++own; });
  leave(Leftover::kMapping, 0, [&] {
    ++mappings;
    leave(Leftover::kOwn, 0, [&] { ++own; });  // may leave more
  });
  give_back_mappings();
  EXPECT_EQ(mappings, 1);
  EXPECT_EQ(own, 0);
  give_back_leftovers();
  EXPECT_EQ(mappings, 1);
  EXPECT_EQ(own, 2);
}

}  // namespace
}  // namespace tutti::cuda
