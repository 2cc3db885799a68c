// When compiled plans may be loaded, and for whom.
#include "communicator/cuda/quiet_device.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>

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

}  // namespace
}  // namespace tutti::cuda
