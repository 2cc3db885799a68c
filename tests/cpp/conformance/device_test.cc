// The suite of devices on the CPU and on a plug-in made by the recipe of docs/contributing.md, and what the public
// entry makes of such a plug-in: nothing but its own library is needed.
#include "conformance/device.h"

#include <latch>
#include <thread>

#include "base/interruption.h"
#include "bootstrap/memory_store.h"
#include "device/registry.h"
#include "tutti/device_communicator.h"

namespace tutti::test {
namespace {

Device& loopback() {
  static DeviceRegistry registry({LOOPBACK_PLUGIN});
  return registry.find("loopback");
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance,
                         ::testing::Values(DeviceSource{"cpu", []() -> Device& { return cpu_device(); }}));
INSTANTIATE_TEST_SUITE_P(Loopback, DeviceConformance, ::testing::Values(DeviceSource{"loopback", loopback}));

class LoopbackDevice : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("TUTTI_PLUGIN_PATH", LOOPBACK_PLUGIN, 1); }

  // Runs `body` on every rank, each a thread with a group on devices of `kind`; rank 0 is this one.
  static void run_ranks(const std::string& kind, int size, const std::function<void(int, DeviceCommunicator&)>& body) {
    MemoryStore store;
    const auto run_rank = [&](int rank) {
      try {
        CommunicatorOptions options;
        options.timeout = std::chrono::seconds(60);
        options.config = config_from_environment();
        const auto host = Communicator::create(store, "host", rank, size, options);
        body(rank, *DeviceCommunicator::create(kind, *host));
        host->shutdown();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    };
    std::vector<std::thread> others;
    for (int r = 1; r < size; ++r) others.emplace_back(run_rank, r);
    run_rank(0);
    for (std::thread& rank : others) rank.join();
  }
};

// Numbers in memory of the device.
class Numbers {
 public:
  explicit Numbers(const std::vector<float>& values) : count_(values.size()), data_(loopback().allocate(bytes())) {
    loopback().copy(data_, values.data(), bytes());
  }
  ~Numbers() { loopback().deallocate(data_, bytes()); }
  Numbers(const Numbers&) = delete;

  std::size_t bytes() const { return count_ * sizeof(float); }
  void* data() const { return data_; }
  std::vector<float> read() const {
    std::vector<float> values(count_);
    loopback().copy(values.data(), data_, bytes());
    return values;
  }

 private:
  std::size_t count_;
  void* data_;
};

TEST_F(LoopbackDevice, CollectivesRunThroughThePublicEntry) {
  run_ranks("loopback", 3, [](int rank, DeviceCommunicator& group) {
    const Numbers data(std::vector<float>(1000, static_cast<float>(rank + 1))), all(std::vector<float>(3000));
    EXPECT_EQ(device_of("loopback", data.data()), std::optional(0));
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = 1000;
    call.input = call.output = Blocks::single(data.data(), data.bytes());
    group.run(call, {});
    EXPECT_EQ(data.read(), std::vector<float>(1000, 6));

    std::vector<void*> blocks;
    for (int r = 0; r < 3; ++r) blocks.push_back(static_cast<std::byte*>(all.data()) + 4000 * (2 - r));
    call.collective = Collective::kAllGather;
    call.output = Blocks::list(blocks.data(), nullptr);
    call.output.bytes = data.bytes();
    group.run(call, {});
    EXPECT_EQ(all.read(), std::vector<float>(3000, 6));
  });
}

TEST_F(LoopbackDevice, MessagesRunThroughThePublicEntry) {
  run_ranks("loopback", 2, [](int rank, DeviceCommunicator& group) {
    const Numbers data(std::vector<float>(5, static_cast<float>(rank)));
    if (rank == 0) return group.send(data.data(), data.bytes(), 1, 7, {});
    group.recv(data.data(), data.bytes(), 0, 7, {});
    EXPECT_EQ(data.read(), std::vector<float>(5, 0));
  });
}

// While a rank waits for a peer that does not come: a handler that its wait runs ends the group.
TEST_F(LoopbackDevice, AnEndOfTheGroupEndsWhatForms) {
  static std::function<void()> end;
  const auto run_handlers = [](std::string&) noexcept {
    end();
    return std::exception_ptr();
  };
  for (const bool message : {false, true}) {
    for (const bool abort : {false, true}) {
      std::latch ended(1);
      run_ranks("loopback", 2, [&](int rank, DeviceCommunicator& group) {
        if (rank == 1) return ended.wait();  // which never comes
        end = [&] { abort ? group.abort("enough") : group.shutdown(); };
        try {
          interruptible(run_handlers, {}, [&] { message ? group.message_stream(0, 1, true) : group.own_stream(0); });
          ADD_FAILURE() << "made without a peer";
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
          EXPECT_NE(std::string(error.what()).find(abort ? "aborted: enough" : "shut down"), std::string::npos)
              << error.what();
        }
        ended.count_down();
      });
    }
  }
}

TEST_F(LoopbackDevice, AddressesOfTheHostAreOnNoDevice) {
  const float number = 1;
  EXPECT_EQ(device_of("loopback", &number), std::nullopt);
  EXPECT_EQ(device_of("nowhere", &number), std::nullopt);
}

TEST_F(LoopbackDevice, AKindWithoutAPluginSaysWhatIsMissing) {
  run_ranks("nowhere", 1, [](int, DeviceCommunicator& group) {
    try {
      group.own_stream(0);
      FAIL() << "a stream of no device";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("libtutti_nowhere"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace tutti::test
