// A rank that dies while a group on devices forms, or the messages of a pair: the others hear of it at once, though no
// store tells them. Ranks are processes, the plug-in is host_plugin.cc, and the deadline lies behind the watchdog of
// each.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace tutti::test
