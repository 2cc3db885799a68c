// What a group makes on devices, step by step: time limits that change meanwhile, ends, and want of memory. The device
// is told_device.cc.
#include "tutti/device_communicator.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "communicator/refused_memory.h"
#include "communicator/thread_ranks.h"
#include "communicator/told_device.h"

namespace tutti::test {
namespace {

constexpr auto kLong = std::chrono::minutes(10);

// Whether a thread of this process sleeps, as the system sees it.
bool is_asleep(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return text.find(") S ") != std::string::npos;
}

// What has become of a message.
struct Fate {
  std::promise<void> woken;
  std::exception_ptr error;
  int ends = 0;
};

class Message final : public DeferredMessage {
 public:
  explicit Message(Fate& fate) : fate_(fate) {}
  void run(const StreamCommunicatorPtr&) noexcept override { ++fate_.ends; }
  void fail(const std::exception_ptr& error) noexcept override {
    ++fate_.ends;
    fate_.error = error;
  }
  void wake() noexcept override { fate_.woken.set_value(); }
  void announce() noexcept override {}

 private:
  Fate& fate_;
};

class DeviceCommunicators : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TUTTI_PLUGIN_PATH", TOLD_PLUGIN, 1);
    void* const plugin = ::dlopen(TOLD_PLUGIN "/libtutti_told.so", RTLD_NOW);
    ASSERT_NE(plugin, nullptr) << ::dlerror();
    told_ = reinterpret_cast<ToldSymbol*>(::dlsym(plugin, kToldSymbol))();
  }
  void TearDown() override { *told_ = {}; }

  static std::shared_ptr<Communicator> create(Store& store, int rank, int size) {
    CommunicatorOptions options;
    options.timeout = kLong;
    options.config = config_from_environment();  // which names the plug-in
    return Communicator::create(store, "test", rank, size, options);
  }
  // Rank 0 of two; the other makes nothing on devices, and stays until `body` has returned.
  void with_peer(const std::function<void(std::shared_ptr<Communicator>)>& body) {
    MemoryStore store;
    std::promise<void> over;
    std::thread peer([&] {
      const auto host = create(store, 1, 2);
      over.get_future().wait();
    });
    try {
      body(create(store, 0, 2));
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    over.set_value();
    peer.join();
  }

  Told* told_ = nullptr;
};

// Of three ranks on two hosts: which communicators are told that all of theirs are on one, and which that they have
// messages alone, and need little memory.
TEST_F(DeviceCommunicators, AreToldWhetherTheirRanksShareAHostAndWhatTheyAreFor) {
  std::mutex mutex;
  std::map<std::string, std::set<bool>> said;
  told_->making = [&](const std::string& id, const DeviceOptions& options) {
    const std::lock_guard lock(mutex);
    said[id].insert(options.one_host);
    EXPECT_EQ(options.messages_only, id.find('>') != std::string::npos) << id;
  };
  World world;
  world.size = 3;
  world.config_of = [](int) { return config_from_environment(); };
  world.host_of = [](int rank) { return rank < 2 ? "one" : "other"; };
  run_ranks(world, [](Communicator& host) {
    const auto devices = DeviceCommunicator::create("told", host);
    devices->own_stream(0);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != host.rank()) devices->message_stream(0, peer, host.rank() < peer);
    }
    host.run(Call());
  });
  const std::lock_guard lock(mutex);
  EXPECT_EQ(said.size(), 7U);  // of all, and of each ordered pair
  for (const auto& [id, one_host] : said) {
    const bool near = id.find("0>1") != std::string::npos || id.find("1>0") != std::string::npos;
    EXPECT_EQ(one_host, std::set<bool>{near}) << id;
  }
}

// It can be found while it still gets the time limit of before: then another thread sets a new one, or waits to.
TEST_F(DeviceCommunicators, ATimeoutThatIsSetWhileSomethingIsMadeCounts) {
  MemoryStore store;
  const auto host = create(store, 0, 1);
  const auto devices = DeviceCommunicator::create("told", *host);
  constexpr std::chrono::milliseconds kNew(1234);
  std::thread other;
  std::atomic<int> number{0};  // of that thread
  std::atomic<bool> set{false};
  told_->setting_timeout = [&, maker = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != maker) return;
    other = std::thread([&] {
      // relaxed, here and below: the looks go by one word at a time.
      number.store(::gettid(), std::memory_order_relaxed);
      devices->set_timeout(kNew);
      set.store(true, std::memory_order_relaxed);
    });
    while (!set.load(std::memory_order_relaxed) && !is_asleep(number.load(std::memory_order_relaxed))) {
      std::this_thread::yield();
    }
  };
  devices->group(0);
  other.join();
  EXPECT_EQ(devices->group(0)->timeout(), kNew);
  EXPECT_EQ(devices->timeout(), kNew);
}

// Two threads wait in it, one for each direction: neither keeps it for the other.
TEST_F(DeviceCommunicators, AGroupThatIsDroppedEndsWhatFormsInIt) {
  with_peer([&](std::shared_ptr<Communicator> host) {
    const auto devices = DeviceCommunicator::create("told", *host);
    std::atomic<int> maker{0};
    told_->meeting = [&] { maker.store(::gettid(), std::memory_order_relaxed); };  // relaxed: as above
    EXPECT_EQ(devices->pair(0, 1, /*send=*/true, {}), nullptr);
    Fate fate;
    std::unique_ptr<DeferredMessage> message = std::make_unique<Message>(fate);
    ASSERT_TRUE(devices->defer(1, /*send=*/true, message));
    while (!is_asleep(maker.load(std::memory_order_relaxed))) std::this_thread::yield();  // it waits for its peer
    host.reset();
    fate.woken.get_future().wait();
    const Error error = error_of([&] { std::rethrow_exception(fate.error); });
    EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
    EXPECT_NE(std::string(error.what()).find("has been destroyed"), std::string::npos) << error.what();
  });
}

// On a thread of its own for each direction, where a device is current from the start that may not be the messages'.
TEST_F(DeviceCommunicators, WhatConnectsToARankBeginsOnTheDeviceOfTheMessages) {
  with_peer([&](const std::shared_ptr<Communicator>& host) {
    const auto devices = DeviceCommunicator::create("told", *host);
    std::mutex mutex;  // guards the next two
    std::set<std::pair<std::thread::id, int>> begun, met;
    std::promise<void> both;
    told_->beginning = [&](int device) {
      const std::lock_guard lock(mutex);
      begun.emplace(std::this_thread::get_id(), device);
    };
    told_->meeting = [&] {
      const std::lock_guard lock(mutex);
      met.emplace(std::this_thread::get_id(), 3);
      if (met.size() == 2) both.set_value();
    };
    EXPECT_EQ(devices->pair(3, 1, /*send=*/true, {}), nullptr);
    both.get_future().wait();
    const std::lock_guard lock(mutex);
    EXPECT_EQ(begun, met);
    for (const auto& [thread, device] : begun) EXPECT_NE(thread, std::this_thread::get_id());
  });
}

// Each allocation is refused in turn. What is refused is the caller's still; nobody waits for it, or calls it.
TEST_F(DeviceCommunicators, WithoutMemoryAMessageIsRefusedBeforeItIsTaken) {
  if (!counts_the_librarys()) GTEST_SKIP() << kHasItsOwn;
  with_peer([&](const std::shared_ptr<Communicator>& host) {
    Fate fate;
    {
      const auto devices = DeviceCommunicator::create("told", *host);
      EXPECT_EQ(devices->pair(0, 1, /*send=*/true, {}), nullptr);
      count_me();
      std::unique_ptr<DeferredMessage> message = std::make_unique<Message>(fate);
      long refusals = 0;
      for (bool queued = false; !queued;) {
        std::optional<Error> error;
        {
          const Refusal refusal(Of::kThisThread, Which::kOne, refusals + 1);
          try {
            queued = devices->defer(1, /*send=*/true, message);
          } catch (const Error& e) {
            error = e;
          }
        }
        if (queued) break;
        ++refusals;
        ASSERT_TRUE(error);
        EXPECT_EQ(error->kind(), ErrorKind::kExhausted);
        EXPECT_NE(std::string(error->what()).find("free some memory and call again"), std::string::npos);
        ASSERT_NE(message, nullptr) << "dropped at allocation " << refusals;
      }
      EXPECT_GT(refusals, 0);
      EXPECT_EQ(message, nullptr);
    }
    fate.woken.get_future().wait();
    EXPECT_EQ(fate.ends, 1);
    const Error error = error_of([&] { std::rethrow_exception(fate.error); });
    EXPECT_NE(std::string(error.what()).find("was destroyed"), std::string::npos) << error.what();
  });
}

TEST_F(DeviceCommunicators, AnAbortAndAnEndTakeNoMemory) {
  if (!counts_the_librarys()) GTEST_SKIP() << kHasItsOwn;
  with_peer([&](const std::shared_ptr<Communicator>& host) {
    const auto devices = DeviceCommunicator::create("told", *host);
    EXPECT_EQ(devices->pair(0, 1, /*send=*/true, {}), nullptr);
    const std::string reason = "a reason that a string keeps in memory of its own";
    count_me();
    {
      const Refusal refusal(Of::kThisThread, Which::kAllFromThere, 1);
      devices->abort(reason);
      devices->reset_metrics();
      devices->shutdown();
    }
    const Error error = error_of([&] { devices->pair(0, 1, /*send=*/true, {}); });
    EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
    EXPECT_NE(std::string(error.what()).find("has ended"), std::string::npos) << error.what();
  });
}

}  // namespace
}  // namespace tutti::test
