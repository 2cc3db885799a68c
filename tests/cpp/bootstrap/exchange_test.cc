// What an exchange costs its store, and what the ranks are told that wait in one, also where rank 0 passes all on.
#include "bootstrap/exchange.h"

#include <gtest/gtest.h>

#include <atomic>

#include "bootstrap/limits.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
constexpr int kMany = kMostDirect + 1;

// Counts what the ranks do to one store.
class CountingStore final : public Store {
 public:
  explicit CountingStore(MemoryStore& below) : below_(below) {}

  // relaxed: read when the ranks have been joined.
  std::atomic<std::size_t> written{0}, read{0}, bytes{0};

  void set(std::string_view key, std::string_view value) override {
    written.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(value.size(), std::memory_order_relaxed);
    below_.set(key, value);
  }
  std::string get(std::string_view key, milliseconds timeout) override {
    read.fetch_add(1, std::memory_order_relaxed);
    return below_.get(key, timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return below_.add(key, amount); }
  void erase(std::string_view key) noexcept override { below_.erase(key); }

 private:
  MemoryStore& below_;
};

TEST(Exchange, KeysAndBytesGrowAsTheRanks) {
  const std::string blob(100, 'b');
  for (const int size : {2, kMostDirect, kMany, 64, 256}) {
    MemoryStore memory;
    CountingStore store(memory);
    const auto errors = test::run_threads(size, [&](int rank) {
      const auto blobs = exchange(store, "job", "topic", rank, size, blob, kLong);
      EXPECT_EQ(blobs, std::vector<std::string>(static_cast<std::size_t>(size), blob));
    });
    const auto n = static_cast<std::size_t>(size);
    EXPECT_EQ(errors, std::vector<std::string>(n));
    EXPECT_EQ(memory.keys(), size <= kMostDirect ? n : n + 1);
    EXPECT_EQ(store.written.load(std::memory_order_relaxed), memory.keys());
    EXPECT_LE(store.read.load(std::memory_order_relaxed), n * std::min<std::size_t>(n, kMostDirect));
    EXPECT_LE(store.bytes.load(std::memory_order_relaxed), n * (2 * blob.size() + 4));
  }
}

// Also where the one that cannot join is rank 0, on whom all the others wait.
TEST(Exchange, AReasonReachesAllOfManyRanks) {
  for (const int failing : {0, 3}) {
    MemoryStore store;
    const auto errors = test::run_threads(kMany, [&](int rank) {
      if (rank == failing) return tell_failure(store, "job", rank, Error(ErrorKind::kExhausted, "no room here"));
      exchange(store, "job", kHostTopic, rank, kMany, "blob", kLong);
    });
    for (int r = 0; r < kMany; ++r) {
      const std::string expected =
          "rank " + std::to_string(failing) + " cannot join the group of rank " + std::to_string(r) + ": no room here";
      EXPECT_EQ(errors[static_cast<std::size_t>(r)], r == failing ? "" : expected);
    }
  }
}

TEST(Exchange, ABlobThatEndsTheGroupIsReadWithoutWaitingForTheOthers) {
  MemoryStore store;
  give(store, "job", "topic", 0, kMany, "the end");
  const auto blobs = exchange(store, "job", "topic", 5, kMany, "blob", kLong);
  ASSERT_EQ(blobs.size(), static_cast<std::size_t>(kMany));
  EXPECT_EQ(blobs[0], "the end");
  EXPECT_EQ(blobs[5], "");
}

// A store in which one of the keys will not come.
class LosingStore final : public Store {
 public:
  explicit LosingStore(MemoryStore& below) : below_(below) {}
  void set(std::string_view key, std::string_view value) override { below_.set(key, value); }
  std::string get(std::string_view key, milliseconds timeout) override {
    if (key == exchange_key("job", "topic", 7)) throw_error(ErrorKind::kPeerLost, "rank 7 has ended");
    return below_.get(key, timeout);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override { return below_.add(key, amount); }
  void erase(std::string_view key) noexcept override { below_.erase(key); }

 private:
  MemoryStore& below_;
};

TEST(Exchange, WhatOnlyRank0CanFindItTells) {
  MemoryStore memory;
  const auto errors = test::run_threads(kMany, [&](int rank) {
    LosingStore store(memory);
    if (rank != 7) exchange(store, "job", "topic", rank, kMany, "blob", kLong);
  });
  for (int r = 0; r < kMany; ++r) {
    const std::string& error = errors[static_cast<std::size_t>(r)];
    EXPECT_EQ(error.find("rank 7 has ended") != std::string::npos, r != 7) << r << ": " << error;
  }
}

TEST(Exchange, ManyRanksNameThoseThatDidNotCome) {
  for (const int rank : {0, 2}) {
    MemoryStore store;
    for (int r = 0; r < kMany; ++r) {
      if (r != 4) store.set(exchange_key("job", "topic", r), "came");
    }
    try {
      exchange(store, "job", "topic", rank, kMany, "blob", milliseconds(10));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
      EXPECT_NE(std::string(e.what()).find("rank 4 did not come"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace tutti
