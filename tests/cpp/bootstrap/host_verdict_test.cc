// What ranks of other hosts, or those that its leader does not ask, find in the store as the list of a host's ranks:
// anybody may have written it.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/host_protocol.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "communicator/thread_ranks.h"

namespace tutti {
namespace {

using test::error_of;
using test::request_of;

// A store that gives other ranks than those that share memory with rank 0.
class ForgingStore final : public test::ForwardingStore {
 public:
  ForgingStore(Store& below, const std::vector<int>& ranks) : ForwardingStore(below), forged_(encode(of(ranks))) {}

  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    std::vector<std::string> values = ForwardingStore::multi_get(keys, timeout);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == verdict_key("world", 0)) values[i] = forged_;
    }
    return values;
  }

 private:
  static HostVerdict of(const std::vector<int>& ranks) {
    HostVerdict verdict;
    verdict.ranks = ranks;
    return verdict;
  }
  const std::string forged_;
};

void expect_forged(const Error& error, const std::string& named) {
  const std::string text = error.what();
  EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << text;
  EXPECT_NE(text.find("as the ranks that share memory with rank 0 the store gives " + named), std::string::npos)
      << text;
  EXPECT_NE(text.find("it changes values"), std::string::npos) << text;
}

TEST(HostVerdict, WhatALeaderDoesNotSayIsNotBelieved) {
  const std::vector<std::pair<std::vector<int>, std::string>> forgeries = {
      {{}, "nobody"},
      {{1}, "others, and not that rank itself"},
      {{1, 0}, "a list in no order"},
      {{0, 0, 1}, "a list in no order"},
      {{0, 1, 2}, "rank 2, which knows nothing of it"},
      {{0, 1, 3}, "rank 3, which is of another host"},
      {{0, 4}, "rank 4, which does not exist"},
      {{-1, 0}, "rank -1, which does not exist"},
  };
  for (const auto& [ranks, named] : forgeries) {
    MemoryStore below;
    const auto errors = test::run_threads(4, [&, &ranks = ranks, &named = named](int rank) {
      const HostGroupRequest request = request_of(rank, 4, rank < 2 ? "first" : "second");
      if (rank != 2) {
        form_host_group(below, request);
        return;
      }
      ForgingStore store(below, ranks);
      expect_forged(error_of([&] { form_host_group(store, request); }), named);
    });
    EXPECT_EQ(errors, std::vector<std::string>(4));
  }
}

// Rank 0 has closed its socket before rank 1 came, as a leader does that has failed.
TEST(HostVerdict, OfALeaderThatHasNotAskedThisRankIsNone) {
  MemoryStore store;
  const HostGroupRequest request = request_of(1, 2, "host");
  HostCard card{"chosen:host", "tutti-closed", random_nonce(), request.segment_bytes(2), {}, {}, 0, machine_id()};
  store.set(exchange_key("world", kHostTopic, 0), encode(card));
  HostVerdict verdict;
  verdict.ranks = {0};
  store.set(verdict_key("world", 0), encode(verdict));
  expect_forged(error_of([&] { form_host_group(store, request); }), "a list without rank 1, which has not been asked");
}

}  // namespace
}  // namespace tutti
