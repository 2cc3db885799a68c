// The events of CUDA streams that are used again, above a device that only counts them.
#include "aten/cuda_events.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "aten/cuda_streams.h"
#include "aten/side_stream.h"
#include "base/registry.h"
#include "support/child_process.h"

namespace tutti::face {
namespace {

// What PyTorch asks of CUDA. An event is a number, as CUDA's are of a device: recorded on another's stream they fail.
class CountingCuda final : public c10::impl::DeviceGuardImplInterface {
 public:
  struct Event {
    c10::Stream stream;
    int records = 0;
  };

  static std::mutex mutex;
  static int made, alive, dealt;
  static std::vector<std::pair<c10::Stream, c10::Stream>> waits;  // which stream, for which
  static bool broken;

  static void reset() {
    made = alive = 0;
    waits.clear();
    broken = false;
  }

  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override { return std::exchange(current_device(), device); }
  c10::Device getDevice() const override { return current_device(); }
  void setDevice(c10::Device device) const override { current_device() = device; }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device() = device; }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream().device() == device ? current_stream() : c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return std::exchange(current_stream(), stream); }
  // In turn, and odd: as PyTorch numbers them.
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    const std::lock_guard<std::mutex> lock(mutex);
    return c10::Stream(c10::Stream::UNSAFE, device, 2 * (dealt++ % 32) + (high ? 101 : 1));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex device,
              const c10::EventFlag /*flag*/) const override {
    const std::lock_guard<std::mutex> lock(mutex);
    TORCH_CHECK(!broken, "CUDA has failed");
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of another device");
    if (*event == nullptr) {
      *event = new Event{stream};
      ++made;
      ++alive;
    }
    auto* const recorded = static_cast<Event*>(*event);
    recorded->stream = stream;
    ++recorded->records;
  }
  void block(void* event, const c10::Stream& stream) const override {
    const std::lock_guard<std::mutex> lock(mutex);
    waits.emplace_back(stream, static_cast<Event*>(event)->stream);
  }
  // Whether it was asked as CUDA lets a thread ask while another one captures.
  bool queryEvent(void* /*event*/) const override { return std::getenv("TUTTI_TEST_BESIDE_CAPTURES") != nullptr; }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex);
    delete static_cast<Event*>(event);
    --alive;
  }

 private:
  static c10::Device& current_device() {
    thread_local c10::Device device(c10::DeviceType::CUDA, 0);
    return device;
  }
  static c10::Stream& current_stream() {
    thread_local c10::Stream stream(c10::Stream::DEFAULT, c10::Device(c10::DeviceType::CUDA, 0));
    return stream;
  }
};

std::mutex CountingCuda::mutex;
int CountingCuda::made = 0;
int CountingCuda::alive = 0;
int CountingCuda::dealt = 0;
std::vector<std::pair<c10::Stream, c10::Stream>> CountingCuda::waits;
bool CountingCuda::broken = false;

C10_REGISTER_GUARD_IMPL(CUDA, CountingCuda)

c10::Stream stream_of(int device, int number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)),
                     number);
}

class CudaEventsTest : public testing::Test {
 protected:
  CudaEventsTest() {
    ::setenv("TUTTI_PLUGIN_PATH", TUTTI_TEST_PLUGINS, 1);
    CountingCuda::reset();
  }

  CudaEventsPtr events_ = std::make_shared<CudaEvents>();
};

TEST_F(CudaEventsTest, CallsAfterEachOtherShareOneEvent) {
  for (int call = 0; call < 1000; ++call) {
    const CudaEvent event(events_, stream_of(0, 1 + 2 * (call % 3)));
    EXPECT_TRUE(event.query()) << "another thread's capture has ended";
  }
  EXPECT_EQ(CountingCuda::made, 1);
  EXPECT_EQ(CountingCuda::alive, 1);
  events_.reset();
  EXPECT_EQ(CountingCuda::alive, 0);
}

TEST_F(CudaEventsTest, AStreamWaitsForWhatTheEventStoodForLast) {
  { const CudaEvent before(events_, stream_of(0, 1)); }
  CudaEvent(events_, stream_of(0, 3)).block(stream_of(0, 5));
  const std::vector<std::pair<c10::Stream, c10::Stream>> wanted = {{stream_of(0, 5), stream_of(0, 3)}};
  EXPECT_EQ(CountingCuda::waits, wanted);
  EXPECT_EQ(CountingCuda::made, 1);
}

TEST_F(CudaEventsTest, NobodyHasTheEventOfAnother) {
  std::vector<std::unique_ptr<CudaEvent>> held;
  for (int call = 0; call < 10; ++call) held.push_back(std::make_unique<CudaEvent>(events_, stream_of(0, 1)));
  EXPECT_EQ(CountingCuda::made, 10);
  held.clear();
  for (int call = 0; call < 10; ++call) held.push_back(std::make_unique<CudaEvent>(events_, stream_of(0, 1)));
  EXPECT_EQ(CountingCuda::made, 10);
}

TEST_F(CudaEventsTest, EachDeviceHasEventsOfItsOwn) {
  for (int call = 0; call < 100; ++call) {
    const CudaEvent event(events_, stream_of(call % 2, 1));  // throws with one of the other device
  }
  EXPECT_EQ(CountingCuda::made, 2);
}

TEST_F(CudaEventsTest, ABurstLeavesNoMoreThanIsKept) {
  std::vector<std::unique_ptr<CudaEvent>> held;
  for (std::size_t call = 0; call < CudaEvents::kKept + 50; ++call) {
    held.push_back(std::make_unique<CudaEvent>(events_, stream_of(0, 1)));
  }
  held.clear();
  EXPECT_EQ(CountingCuda::alive, static_cast<int>(CudaEvents::kKept));
}

TEST_F(CudaEventsTest, AnEventOutlivesItsGroup) {
  auto event = std::make_unique<CudaEvent>(events_, stream_of(0, 1));
  events_.reset();
  event->block(stream_of(0, 3));
  EXPECT_EQ(CountingCuda::alive, 1);
  event.reset();
  EXPECT_EQ(CountingCuda::alive, 0);
}

// Neither those that have room in the pool nor those that have none.
TEST_F(CudaEventsTest, AForkedChildLeavesThem) {
  constexpr int kMany = static_cast<int>(CudaEvents::kKept) + 50;
  std::vector<std::unique_ptr<CudaEvent>> held;
  for (int call = 0; call < kMany; ++call) held.push_back(std::make_unique<CudaEvent>(events_, stream_of(0, 1)));
  EXPECT_FALSE(forked_child());  // a child is known as one where somebody has asked before
  test::ChildProcess child([&] {
    held.clear();
    events_.reset();
    return CountingCuda::alive == kMany ? 0 : 1;
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(CudaEventsTest, WhereRecordingFailsNothingIsKept) {
  CountingCuda::broken = true;
  EXPECT_THROW(CudaEvent(events_, stream_of(0, 1)), c10::Error);
  CountingCuda::broken = false;
  const CudaEvent event(events_, stream_of(0, 1));
  EXPECT_EQ(CountingCuda::alive, 1);
}

TEST_F(CudaEventsTest, ThreadsTakeAndGiveBackAtTheSameTime) {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      for (int call = 0; call < 1000; ++call) CudaEvent(events_, stream_of(0, 1)).block(stream_of(0, 3 + 2 * thread));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(CountingCuda::made, kThreads);
  EXPECT_EQ(CountingCuda::waits.size(), kThreads * 1000U);
}

// What every call aside does: the side stream waits for the caller's, then that one for it.
TEST_F(CudaEventsTest, CallsAsideOrderTheirStreamsWithoutNewEvents) {
  const c10::Stream own = current_cuda_stream(stream_of(0, 1).device());
  const c10::Stream side = stream_of(0, 1);
  for (int call = 0; call < 100; ++call) {
    CountingCuda::waits.clear();
    { const OnSideStream on_side(events_, side, /*join=*/true); }
    const std::vector<std::pair<c10::Stream, c10::Stream>> wanted = {{side, own}, {own, side}};
    EXPECT_EQ(CountingCuda::waits, wanted);
  }
  EXPECT_EQ(CountingCuda::made, 1);
}

class SideStreams : public testing::Test {
 protected:
  void take(int count, int device = 0) {
    for (int i = 0; i < count; ++i) {
      taken_.push_back(
          std::make_unique<SideStream>(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))));
    }
  }
  std::size_t different() const {
    std::set<std::pair<int, c10::StreamId>> ids;
    for (const auto& one : taken_) ids.emplace(one->get().device_index(), one->get().id());
    return ids.size();
  }

  std::vector<std::unique_ptr<SideStream>> taken_;
};

// Whatever others take of the pool between, and whatever groups have ended.
TEST_F(SideStreams, NobodySharesOneWhileThereAreEnough) {
  for (int round = 0; round < 5; ++round) {
    take(20);
    CountingCuda::dealt += 13;
    take(12);
    EXPECT_EQ(different(), 32U);
    take(32, 1);
    EXPECT_EQ(different(), 64U);
    taken_.erase(taken_.begin() + 32, taken_.end());
    taken_.erase(taken_.begin() + 5, taken_.begin() + 17);
    take(12);
    EXPECT_EQ(different(), 32U);
    taken_.clear();
  }
}

TEST_F(SideStreams, MoreThanThePoolHasAreSharedEvenly) {
  take(64);
  CountingCuda::dealt += 7;
  take(1);
  EXPECT_EQ(different(), 32U);
  std::map<c10::StreamId, int> uses;
  for (const auto& one : taken_) ++uses[one->get().id()];
  for (const auto& [id, count] : uses) EXPECT_LE(count, 3);
  EXPECT_EQ(std::ranges::count_if(uses, [](const auto& one) { return one.second == 3; }), 1);
}

// Their uses, under a lock that another thread may have had.
TEST_F(SideStreams, AForkedChildLeavesThem) {
  take(3);
  EXPECT_FALSE(forked_child());
  test::ChildProcess child([&] {
    std::set<c10::StreamId> parents;
    for (const auto& one : taken_) parents.insert(one->get().id());
    taken_.clear();
    CountingCuda::dealt -= 3;  // the pool deals the same again
    take(1);
    return parents.contains(taken_.front()->get().id()) ? 1 : 0;
  });
  EXPECT_EQ(child.join(), 0);
}

}  // namespace
}  // namespace tutti::face
