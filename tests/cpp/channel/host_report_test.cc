// What a rank tells of its end: of one failure, also when two threads have one each at the same moment.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "bootstrap/host_group.h"
#include "bootstrap/memory_store.h"
#include "channel/host_channel.h"

namespace tutti {
namespace {

std::unique_ptr<HostChannel> make_channel(Store& store, const std::string& id, int rank) {
  const SegmentLayout layout(SegmentShape{.ranks = 2, .slot_bytes = 4096, .stage_bytes = 4096, .ring_capacity = 4096});
  HostGroupRequest request;
  request.id = id;
  request.rank = rank;
  request.size = 2;
  request.segment_bytes = [&](int) { return layout.total_bytes(); };
  request.timeout = std::chrono::seconds(20);
  auto channel = std::make_unique<HostChannel>(form_host_group(store, request), layout, WaitPolicy{});
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  EXPECT_TRUE(channel->join(deadline).ok());
  return channel;
}

// Runs `both` with the channels of two ranks.
template <class Both>
void with_two_ranks(const std::string& id, const Both& both) {
  MemoryStore store;
  std::unique_ptr<HostChannel> first, second;
  std::thread other([&] { second = make_channel(store, id, 1); });
  first = make_channel(store, id, 0);
  other.join();
  both(*first, *second);
}

TEST(HostReport, TwoFailuresAtOnceAreNotMixed) {
  int aborts = 0;
  for (int round = 0; round < 60; ++round) {
    with_two_ranks("mixed" + std::to_string(round), [&](HostChannel& failing, HostChannel& peer) {
      std::atomic<int> ready{0};
      const auto together = [&] {
        ready.fetch_add(1, std::memory_order_acq_rel);
        while (ready.load(std::memory_order_acquire) < 2) std::this_thread::yield();
      };
      std::thread aborting([&] {
        together();
        failing.report({Status::kAborted, 0}, 0, "on purpose");
      });
      together();
      failing.report({Status::kTimeout, 1}, 1);
      aborting.join();
      const Outcome said = peer.reported(0);
      const bool aborted = said.status == Status::kAborted;
      EXPECT_EQ(said.status, aborted ? Status::kAborted : Status::kTimeout);
      EXPECT_EQ(said.peer, aborted ? 0 : 1);
      EXPECT_EQ(peer.reason_of(0), aborted ? "on purpose" : "");
      aborts += aborted ? 1 : 0;
    });
  }
  RecordProperty("aborts", aborts);
}

TEST(HostReport, AReasonIsCutWhereThereIsNoMoreRoom) {
  with_two_ranks("long", [](HostChannel& failing, HostChannel& peer) {
    EXPECT_EQ(peer.reason_of(0), "");
    failing.report({Status::kAborted, 0}, 0, std::string(500, 'x'));
    EXPECT_EQ(peer.reason_of(0), std::string(kReasonBytes, 'x'));
    failing.report({Status::kTimeout, 1}, 0, "later");
    EXPECT_EQ(peer.reported(0).status, Status::kAborted);
    EXPECT_EQ(peer.reason_of(0).front(), 'x');
  });
}

}  // namespace
}  // namespace tutti
