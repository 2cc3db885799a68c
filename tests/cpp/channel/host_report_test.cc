// What a rank tells of its end: of one failure, also when two threads have one each at the same moment.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "channel/host_channels.h"

namespace tutti {
namespace {

// Runs `both` with the channels of two ranks.
template <class Both>
void with_two_ranks(const Both& both) {
  const auto channels = test::make_host_channels();
  both(*channels[0], *channels[1]);
}

TEST(HostReport, TwoFailuresAtOnceAreNotMixed) {
  int aborts = 0;
  for (int round = 0; round < 60; ++round) {
    with_two_ranks([&](HostChannel& failing, HostChannel& peer) {
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
  with_two_ranks([](HostChannel& failing, HostChannel& peer) {
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
