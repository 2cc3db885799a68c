// What a rank tells of itself: of its end one failure, also when two threads have one each at the same moment, and of
// its call what it has announced, whatever it writes there later.
#include <gtest/gtest.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <fstream>
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

// Overwrites `from` by `to` wherever this process maps the channels' segment. How often.
int rewrite(std::uint64_t from, std::uint64_t to) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:tutti ") == std::string::npos) continue;
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    auto* const words = reinterpret_cast<std::uint64_t*>(begin);
    for (std::size_t i = 0; i < (end - begin) / sizeof(std::uint64_t); ++i) {
      if (words[i] != from) continue;
      words[i] = to;
      ++found;
    }
  }
  return found;
}

// What has been checked is what is used, whatever the peer writes there afterwards.
TEST(HostReport, APeersRecordIsReadOnce) {
  with_two_ranks([](HostChannel& own, HostChannel& peer) {
    constexpr std::uint64_t kOffset = 0x5ca1ab1edecade64;
    Deadline deadline = Deadline::after(std::chrono::seconds(20));
    CallRecord record;
    record.sequence = 1;
    record.hash = 7;
    ASSERT_TRUE(own.begin_and_announce(record, deadline).ok());
    record.mapped_output = kOffset;
    ASSERT_TRUE(peer.begin_and_announce(record, deadline).ok());
    ASSERT_TRUE(own.await_records(deadline).ok());
    ASSERT_EQ(own.peer_record(1).mapped_output, kOffset);
    EXPECT_EQ(rewrite(kOffset, 1), 1);
    EXPECT_EQ(own.peer_record(1).mapped_output, kOffset);
  });
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
