// A rank that dies while a group on devices forms, or the messages of a pair: the others hear of it at once, though no
// store tells them. Ranks are processes, the plug-in is host_plugin.cc, and the deadline lies behind the watchdog of
// each.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "communicator/forming_deaths.h"
#include "tutti/device_communicator.h"

namespace tutti::test {
namespace {

// What a rank's process ends with, once it has lost the victim.
int lost_on_device(Store& store, const std::string& layout, int rank, int victim, const char* dies_at,
                   const std::function<void(DeviceCommunicator&)>& make) {
  if (rank == victim) ::setenv("HOST_PLUGIN_DIES", dies_at, 1);
  const int size = static_cast<int>(layout.size());
  CommunicatorOptions options = options_of(layout, rank);
  options.config.plugin_path = HOST_PLUGIN;
  const auto host = Communicator::create(store, kName, rank, size, options);
  const auto devices = DeviceCommunicator::create("cuda", *host);
  return lost({store, layout, rank, victim}, [&]() -> std::shared_ptr<Communicator> {
    make(*devices);
    return host;
  });
}

void expect_deaths_named(const std::string& layout, int victim, const char* dies_at,
                         const std::function<void(int, DeviceCommunicator&)>& make) {
  StoreProcess stores;
  Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
    return lost_on_device(store, layout, r, victim, dies_at, [&](DeviceCommunicator& devices) { make(r, devices); });
  });
  const std::string what = layout + ": rank " + std::to_string(victim) + " dies at " + dies_at;
  expect_named(ranks, victim, what);
  EXPECT_EQ(ranks[static_cast<std::size_t>(victim)]->join(), 1000 + SIGKILL) << what;
}

class DeviceDeaths : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("TUTTI_PLUGIN_PATH", HOST_PLUGIN, 1); }
};

TEST_F(DeviceDeaths, AtEveryStepOfAGroup) {
  for (const std::string layout : {"aaa", "aab"}) {
    for (const int victim : {0, 1, 2}) {
      for (const char* step : {"start", "agreed"}) {
        expect_deaths_named(layout, victim, step, [](int, DeviceCommunicator& devices) { devices.own_stream(0); });
      }
    }
  }
}

TEST_F(DeviceDeaths, AtEveryStepOfAPair) {
  for (const std::string layout : {"aa", "ab"}) {
    for (const int victim : {0, 1}) {
      for (const char* step : {"start", "agreed"}) {
        expect_deaths_named(layout, victim, step, [](int rank, DeviceCommunicator& devices) {
          devices.message_stream(0, 1 - rank, rank == 0);
        });
      }
    }
  }
}

// What a rank of three hears of another one, on whose account nobody makes a call: its device's communicators, made
// before, are looked after.
int hears_of(Store& store, int rank, int victim, const std::function<void(Communicator&)>& end, const char* what) {
  CommunicatorOptions options = options_of("aaa", rank);
  options.config.plugin_path = HOST_PLUGIN;
  const auto host = Communicator::create(store, kName, rank, 3, options);
  const auto devices = DeviceCommunicator::create("cuda", *host);
  devices->own_stream(0);
  host->run(Call{});
  int code = kFormed;
  if (rank == victim) {
    end(*host);
  } else {
    Deadline deadline = Deadline::after(std::chrono::seconds(*what != 0 ? 60 : 1));
    std::optional<Error> failure;
    while (!(failure = devices->failure()) && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string text = failure ? failure->what() : "";
    const bool named = text.find("rank " + std::to_string(victim)) != std::string::npos &&
                       text.find(what) != std::string::npos && failure->kind() == ErrorKind::kPeerLost;
    code = *what != 0 ? (named ? kNamed : kOther) : (failure ? kOther : kNamed);
    if (code == kOther) std::fprintf(stderr, "rank %d heard: %s\n", rank, text.c_str());
  }
  store.set("finished " + std::to_string(rank), "");
  for (int r = 0; r < 3; ++r) {
    if (r != victim) store.get("finished " + std::to_string(r), std::chrono::seconds(60));
  }
  return code;
}
void expect_heard(const std::function<void(Communicator&)>& end, const char* what, int ends_with) {
  for (const int victim : {0, 2}) {
    StoreProcess stores;
    Ranks ranks =
        start_ranks("aaa", stores, [&](Store& store, int r) { return hears_of(store, r, victim, end, what); });
    expect_named(ranks, victim, what);
    EXPECT_EQ(ranks[static_cast<std::size_t>(victim)]->join(), ends_with);
  }
}

TEST_F(DeviceDeaths, EndWhatWaitsOnADevice) {
  expect_heard([](Communicator&) { ::raise(SIGKILL); }, "died", 1000 + SIGKILL);
}

TEST_F(DeviceDeaths, AnAbortEndsWhatWaitsOnOtherDevices) {
  expect_heard([](Communicator& host) { host.abort("by a test"); }, "aborted the group: by a test", kFormed);
}

// It may have been in its last call, whose results others have yet to take.
TEST_F(DeviceDeaths, ARankThatLeavesIsNotLost) {
  expect_heard([](Communicator& host) { host.shutdown(); }, "", kFormed);
}

}  // namespace
}  // namespace tutti::test
