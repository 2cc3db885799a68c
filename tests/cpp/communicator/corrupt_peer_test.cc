// A peer whose words in shared memory cannot be true is named, and nothing is read or written where it points.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

#include "communicator/call_records.h"
#include "communicator/formed_group.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

constexpr std::size_t kLargeCount = std::size_t{1} << 18;
constexpr std::size_t kBlockBytes = kLargeCount * sizeof(float);

CommunicatorOptions patient_options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(20'000);
  options.config.log_level = "error";
  return options;
}

// A call of rank 0, and its tensors: blocks of kLargeCount floats of its arena.
struct RankZeroCall {
  explicit RankZeroCall(Collective collective, int root = -1)
      : input(blocks_in(collective, 2) * kLargeCount, true), output(blocks_out(collective, 2) * kLargeCount, true) {
    std::fill_n(input.data(), blocks_in(collective, 2) * kLargeCount, 1.0F);
    std::fill_n(output.data(), blocks_out(collective, 2) * kLargeCount, 2.0F);
    call.collective = collective;
    call.dtype = DataType::kFloat32;
    call.count = kLargeCount;
    call.root = root;
    const bool reads = collective != Collective::kScatter || root == 0;
    const bool writes = collective != Collective::kGather || root == 0;
    if (reads) call.input = Blocks::single(input.data(), kBlockBytes);
    if (writes) call.output = Blocks::single(output.data(), kBlockBytes);
  }

  // What rank 1 says of the same call, its tensors at these offsets.
  CallRecord record(std::uint64_t mapped_input, std::uint64_t mapped_output) const {
    CallRecord record;
    record_call(call, record);
    record.sequence = 1;
    record.mapped_input = mapped_input;
    record.mapped_output = mapped_output;
    record.hash = fingerprint(record);
    return record;
  }

  void expect_untouched() {
    const auto all = [](Floats& floats, std::size_t count, float value) {
      return std::count(floats.data(), floats.data() + count, value) == static_cast<std::ptrdiff_t>(count);
    };
    EXPECT_TRUE(all(input, blocks_in(call.collective, 2) * kLargeCount, 1.0F));
    EXPECT_TRUE(all(output, blocks_out(call.collective, 2) * kLargeCount, 2.0F));
  }

  Floats input, output;
  Call call;
};

// Rank 0 makes its call; rank 1 is a peer that announces its part of it with tensors at these offsets.
void refuse(RankZeroCall& of_rank_zero, std::uint64_t mapped_input, std::uint64_t mapped_output) {
  SCOPED_TRACE(describe(of_rank_zero.record(mapped_input, mapped_output)) + ": input at " +
               std::to_string(mapped_input) + ", output at " + std::to_string(mapped_output));
  MemoryStore store;
  const CommunicatorOptions options = patient_options();
  std::thread peer([&] {
    const FormedGroup formed = form_group(store, "test", 1, 2, options);
    Deadline enough = Deadline::after(options.timeout);
    ASSERT_TRUE(formed.host->begin_and_announce(of_rank_zero.record(mapped_input, mapped_output), enough).ok());
    // Stays until rank 0 has said that it failed.
    const Outcome end = formed.host->await_step(0, StepLane::kDrained, 1, enough);
    EXPECT_EQ(end.status, Status::kPeerFailed);
    EXPECT_EQ(formed.host->reported(0).status, Status::kCorrupt);
  });
  const auto c = Communicator::create(store, "test", 0, 2, options);
  const Error error = error_of([&] { c->run(of_rank_zero.call); });
  peer.join();
  const std::string text = error.what();
  EXPECT_EQ(error.kind(), ErrorKind::kInternal) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  EXPECT_NE(text.find("lies outside of its arena"), std::string::npos) << text;
  of_rank_zero.expect_untouched();
}

TEST(CorruptPeer, OffsetsOutsideOfItsArenaAreRefused) {
  const std::uint64_t end = process_arena()->bytes();
  RankZeroCall all_reduce(Collective::kAllReduce);
  for (const std::uint64_t offset :
       {end, end - kBlockBytes + 64, end + (std::uint64_t{1} << 40), kNotMapped - kBlockBytes}) {
    refuse(all_reduce, offset, 0);
    refuse(all_reduce, 0, offset);
  }
}

// Of a tensor of two blocks the first may lie in the arena, and the other behind it or across its end.
TEST(CorruptPeer, AllBlocksOfATensorMustLieInItsArena) {
  const std::uint64_t end = process_arena()->bytes();
  RankZeroCall all_gather(Collective::kAllGather), gather(Collective::kGather, 1), scatter(Collective::kScatter, 1);
  for (const std::uint64_t offset : {end - kBlockBytes, end - 2 * kBlockBytes + 64}) {
    refuse(all_gather, 0, offset);
    refuse(gather, 0, offset);
    refuse(scatter, offset, 0);
  }
  // What has one block, however many the other side has.
  for (const std::uint64_t offset : {end, end - kBlockBytes + 64}) {
    refuse(all_gather, offset, 0);
    refuse(gather, offset, 0);
    refuse(scatter, 0, offset);
  }
  // A list is not mapped, whatever it says of the other side.
  RankZeroCall from_leaf(Collective::kGather, 0);
  refuse(from_leaf, end - kBlockBytes + 64, kNotMapped);
}

// It says that it has lost a rank that does not exist.
TEST(CorruptPeer, RanksThatDoNotExistAreNotLookedAt) {
  for (const int peer : {2, 1'000'000'000, -1'000'000'000}) {
    MemoryStore store;
    const CommunicatorOptions options = patient_options();
    std::thread liar([&] {
      const FormedGroup formed = form_group(store, "test", 1, 2, options);
      formed.host->report({Status::kPeerLost, peer}, 1, "");
      Deadline enough = Deadline::after(options.timeout);
      const Outcome end = formed.host->await_step(0, StepLane::kDrained, 1, enough);  // until rank 0 has failed
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
