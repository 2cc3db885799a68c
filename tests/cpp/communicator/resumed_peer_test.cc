// A rank that was stopped in the middle of a call and goes on after the others have given up.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "channel/call_record.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "communicator/topology.h"

namespace tutti::test {
namespace {

constexpr std::size_t kCount = std::size_t{1} << 20;
constexpr std::size_t kBytes = kCount * sizeof(float);

Call all_reduce(float* x) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = kCount;
  call.input = call.output = Blocks::single(x, kBytes);
  return call;
}

CallRecord record_of(float* x) {
  CallRecord record;
  record.sequence = 1;
  record.call = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  record.op = static_cast<std::uint8_t>(ReduceOp::kSum);
  record.count = kCount;
  record.mapped_input = record.mapped_output = process_arena()->offset_of(x, kBytes);
  record.hash = fingerprint(record);
  return record;
}

CommunicatorOptions options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(20'000);
  options.config.log_level = "error";
  return options;
}

TEST(ResumedPeer, ChangesNothingOfASurvivors) {
  MemoryStore store;
  Floats x(kCount, true);
  Floats theirs(kCount, true);
  std::fill_n(x.data(), kCount, 1.0F);
  std::atomic<bool> given_up{false};
  std::atomic<bool> resumed{false};
  std::thread peer([&] {
    const Topology topology = form_topology(store, "test", 1, 2, options());
    HostChannel& host = *topology.host;
    Deadline enough = Deadline::after(options().timeout);
    ASSERT_TRUE(host.begin_and_announce(record_of(theirs.data()), enough).ok());
    ASSERT_TRUE(host.await_records(enough).ok());
    std::byte* to = host.in_arena(0, host.peer_record(0).mapped_output, kBytes);
    ASSERT_NE(to, nullptr);
    while (!given_up.load(std::memory_order_acquire)) std::this_thread::yield();
    std::memset(to, 77, kBytes);
    resumed.store(true, std::memory_order_release);  // release: pairs with the acquire of rank 0
  });
  const auto c = Communicator::create(store, "test", 0, 2, options());
  const Error error = error_of([&] { c->run(all_reduce(x.data()), std::chrono::milliseconds(300)); });
  EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
  std::fill_n(x.data(), kCount, 42.0F);
  given_up.store(true, std::memory_order_release);  // release: pairs with the acquire of the peer
  while (!resumed.load(std::memory_order_acquire)) std::this_thread::yield();
  peer.join();
  EXPECT_EQ(std::count(x.data(), x.data() + kCount, 42.0F), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(process_arena()->offset_of(x.data(), kBytes), kNotMapped);
}

// The memory of a rank that has given up may be nobody's any more.
TEST(ResumedPeer, DoesNotCompleteACallThatAnotherHasGivenUp) {
  MemoryStore store;
  Floats x(kCount, true);
  Floats theirs(kCount, true);
  std::thread peer([&] {
    const Topology topology = form_topology(store, "test", 1, 2, options());
    HostChannel& host = *topology.host;
    Deadline enough = Deadline::after(options().timeout);
    ASSERT_TRUE(host.begin_and_announce(record_of(theirs.data()), enough).ok());
    ASSERT_TRUE(host.await_records(enough).ok());
    host.report({Status::kTimeout, 0}, 1);
    host.publish(StepLane::kDrained, host.step_base() + 1);
    EXPECT_FALSE(host.await_step(0, StepLane::kDrained, host.step_base() + 2, enough).ok()) << "it fails, too";
  });
  const auto c = Communicator::create(store, "test", 0, 2, options());
  const Error error = error_of([&] { c->run(all_reduce(x.data())); });
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
  EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
  peer.join();
}

}  // namespace
}  // namespace tutti::test
