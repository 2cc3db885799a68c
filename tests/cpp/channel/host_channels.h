// Channels of the ranks of one host, all of this process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/host_group.h"
#include "bootstrap/memory_store.h"
#include "channel/host_channel.h"

namespace tutti::test {

inline SegmentLayout small_layout(int ranks = 2) {
  return SegmentLayout({.ranks = ranks, .slot_bytes = 4096, .stage_bytes = 4096, .ring_capacity = 4096});
}

// One rank's; returns when all have come.
inline std::unique_ptr<HostChannel> make_host_channel(Store& store, int rank, int ranks = 2,
                                                      const WaitPolicy& policy = {}) {
  const SegmentLayout layout = small_layout(ranks);
  HostGroupRequest request;
  request.id = "channels of " + std::to_string(ranks);
  request.rank = rank;
  request.size = ranks;
  request.segment_bytes = [&](int) { return layout.total_bytes(); };
  request.timeout = std::chrono::seconds(20);
  auto channel = std::make_unique<HostChannel>(form_host_group(store, request), layout, policy);
  Deadline deadline = Deadline::after(std::chrono::seconds(20));
  EXPECT_TRUE(channel->join(deadline).ok());
  return channel;
}

// By rank.
inline std::vector<std::unique_ptr<HostChannel>> make_host_channels(int ranks = 2, const WaitPolicy& policy = {}) {
  MemoryStore store;
  std::vector<std::unique_ptr<HostChannel>> channels(static_cast<std::size_t>(ranks));
  std::vector<std::thread> makers;
  for (int rank = 0; rank < ranks; ++rank) {
    makers.emplace_back(
        [&, rank] { channels[static_cast<std::size_t>(rank)] = make_host_channel(store, rank, ranks, policy); });
  }
  for (std::thread& maker : makers) maker.join();
  return channels;
}

}  // namespace tutti::test
