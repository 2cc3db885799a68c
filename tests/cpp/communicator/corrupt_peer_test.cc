// A peer whose words in shared memory cannot be true is named, and nothing is read or written where it points.
#include <gtest/gtest.h>

#include <thread>

#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "communicator/topology.h"

namespace tutti::test {
namespace {

constexpr std::size_t kLargeCount = std::size_t{1} << 18;

CommunicatorOptions patient_options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(20'000);
  options.config.log_level = "error";
  return options;
}

CallRecord all_reduce_record() {
  CallRecord record;
  record.sequence = 1;
  record.call = static_cast<std::uint8_t>(Collective::kAllReduce);
  record.dtype = static_cast<std::uint8_t>(DataType::kFloat32);
  record.op = static_cast<std::uint8_t>(ReduceOp::kSum);
  record.count = kLargeCount;
  record.mapped_input = record.mapped_output = 0;
  record.hash = fingerprint(record);
  return record;
}

// Rank 0 makes a mapped all-reduce; rank 1 is a peer that announces `record` as its part of it.
void reduce_with(const CallRecord& record) {
  MemoryStore store;
  const CommunicatorOptions options = patient_options();
  std::thread peer([&] {
    const Topology topology = form_topology(store, "test", 1, 2, options);
    Deadline enough = Deadline::after(options.timeout);
    ASSERT_TRUE(topology.host->begin_and_announce(record, enough).ok());
    // Stays until rank 0 has said that it failed.
    const Outcome end = topology.host->await_step(0, StepLane::kDrained, 1, enough);
    EXPECT_EQ(end.status, Status::kPeerFailed);
    EXPECT_EQ(topology.host->reported(0).status, Status::kCorrupt);
  });
  const auto c = Communicator::create(store, "test", 0, 2, options);
  Floats x(kLargeCount, true);
  std::fill_n(x.data(), kLargeCount, 1.0F);
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = kLargeCount;
  call.input = call.output = Blocks::single(x.data(), kLargeCount * sizeof(float));
  const Error error = error_of([&] { c->run(call); });
  peer.join();
  const std::string text = error.what();
  EXPECT_EQ(error.kind(), ErrorKind::kInternal) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("lies outside of its arena"), std::string::npos) << text;
  EXPECT_EQ(std::count(x.data(), x.data() + kLargeCount, 1.0F), static_cast<std::ptrdiff_t>(kLargeCount));
}

TEST(CorruptPeer, OffsetsOutsideOfItsArenaAreRefused) {
  const std::uint64_t end = process_arena()->bytes();
  const std::uint64_t bytes = kLargeCount * sizeof(float);
  for (const std::uint64_t offset : {end, end - bytes + 64, end + (std::uint64_t{1} << 40), kNotMapped - bytes}) {
    CallRecord record = all_reduce_record();
    record.mapped_input = offset;
    reduce_with(record);
    record = all_reduce_record();
    record.mapped_output = offset;
    reduce_with(record);
  }
}

// It says that it has lost a rank that does not exist.
TEST(CorruptPeer, RanksThatDoNotExistAreNotLookedAt) {
  for (const int peer : {2, 1'000'000'000, -1'000'000'000}) {
    MemoryStore store;
    const CommunicatorOptions options = patient_options();
    std::thread liar([&] {
      const Topology topology = form_topology(store, "test", 1, 2, options);
      topology.host->report({Status::kPeerLost, peer}, 1, "");
      Deadline enough = Deadline::after(options.timeout);
      const Outcome end = topology.host->await_step(0, StepLane::kDrained, 1, enough);  // until rank 0 has failed
      EXPECT_EQ(end.status, Status::kPeerFailed);
    });
    const auto c = Communicator::create(store, "test", 0, 2, options);
    const Error error = error_of([&] { c->run(Call{}); });
    liar.join();
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
    EXPECT_NE(std::string(error.what()).find("gave up: it lost a peer"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tutti::test
