// What promises not to throw, and must say or keep something, where there is no memory for that.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "communicator/cuda/registrations.h"
#include "communicator/refused_memory.h"
#include "cuda/host_ports.h"
#include "device/cuda/leftovers.h"

namespace tutti::cuda::test {
namespace {

using tutti::test::count_me;
using tutti::test::Of;
using tutti::test::Refusal;
using tutti::test::spare_me;
using tutti::test::Which;

// A destructor leaves it.
TEST(NoMemory, WhatCannotBeKeptIsGivenBackAtOnce) {
  count_me();
  EXPECT_EQ(leftovers().things, 0u);  // made now
  int given = 0;
  const auto leave_large = [&given](const std::array<std::byte, 100>& large) {
    leave(Leftover::kOwn, 0, [&given, large] { given += large[0] == std::byte{1} ? 1 : 0; });
  };
  std::array<std::byte, 100> large{std::byte{1}};
  long asked = 0;
  {
    const Refusal none(Of::kThisThread, Which::kOne, 1'000'000);
    leave_large(large);
    asked = Refusal::counted();
  }
  EXPECT_GE(asked, 2);  // for the function, and to keep it
  EXPECT_EQ(given, 0);
  give_back_leftovers();
  EXPECT_EQ(given, 1);
  for (long n = 1; n <= asked; ++n) {
    given = 0;
    {
      const Refusal refusal(Of::kThisThread, Which::kOne, n);
      leave_large(large);
    }
    EXPECT_EQ(given, 1) << "the allocation that failed: " << n;
  }
  EXPECT_EQ(leftovers().things, 0u);
}

class OneRange final : public CudaRegion {
 public:
  std::size_t bytes() const noexcept override { return memory_.size(); }
  std::byte* data(int) const noexcept override { return const_cast<std::byte*>(memory_.data()); }

 private:
  std::array<std::byte, 64> memory_{};
};

// Ranks have agreed on it by then: one that lacked it would make other calls of its tensors.
TEST(NoMemory, ARangeIsAddedWhereRoomWasMade) {
  count_me();
  Registrations table;
  const auto range = std::make_shared<OneRange>();
  Registrations::Room room = Registrations::room_at(range->data(0));
  {
    const Refusal refusal(Of::kThisThread, Which::kAllFromThere, 1);
    table.add(range, std::move(room));
  }
  EXPECT_TRUE(table.holds(*range));
  EXPECT_TRUE(table.contains(range->data(0), 64));
}

// Its thread has no memory any more.
class Starved final : public CopyEngine {
 public:
  explicit Starved(std::optional<Refusal>& refusal) : refusal_(refusal) {}
  void begin_thread() override {
    count_me();
    refusal_.emplace(Of::kThisThread, Which::kAllFromThere, 1);
    throw std::bad_alloc();
  }
  void copy(int, std::byte*, const std::byte*, std::size_t) override {}
  void store(int, std::uint64_t*, std::uint64_t) override {}
  bool mark(int) override { return true; }
  int take_reached(int) override { return 0; }
  void finish() override {}

 private:
  std::optional<Refusal>& refusal_;
};

TEST(NoMemory, TheProxyOfPortsEndsItsCommunicator) {
  spare_me();
  std::vector<device::PortSlot> slots(8);
  std::vector<std::uint64_t> flushed(8);
  std::uint64_t tail = 0;
  device::HostControl host;
  std::optional<Refusal> refusal;
  PortProxy proxy(std::make_unique<Starved>(refusal), {slots.data(), &tail, flushed.data(), 8, &host}, 0, 2);
  proxy.drain();  // returns when the proxy has left
  refusal.reset();
  const std::optional<Error> failure = proxy.failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind(), ErrorKind::kExhausted) << failure->what();
  EXPECT_EQ(device::load_relaxed(&host.abort), 1u);
}

}  // namespace
}  // namespace tutti::cuda::test
