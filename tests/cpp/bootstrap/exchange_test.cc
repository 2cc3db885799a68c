// What an exchange costs its store, and what the ranks are told that wait in one, also where rank 0 passes all on.
#include "bootstrap/exchange.h"

#include <gtest/gtest.h>

#include "bootstrap/counting_store.h"
#include "bootstrap/limits.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"
#include "bootstrap/tcp_store_protocol.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
constexpr int kMany = kMostDirect + 1;
constexpr const char* kAgain = ". The store keeps this: to form the group again, take another name";

TEST(Exchange, KeysAndBytesGrowAsTheRanks) {
  const std::string blob(100, 'b');
  for (const int size : {2, kMostDirect, kMany, 64, 256}) {
    MemoryStore memory;
    test::StoreCosts costs;
    const auto errors = test::run_threads(size, [&](int rank) {
      test::CountingStore store(memory, costs);
      const auto blobs = exchange(store, "job", "topic", rank, size, blob, kLong);
      EXPECT_EQ(blobs, std::vector<std::string>(static_cast<std::size_t>(size), blob));
    });
    const auto n = static_cast<std::size_t>(size);
    EXPECT_EQ(errors, std::vector<std::string>(n));
    EXPECT_EQ(memory.keys(), size <= kMostDirect ? n : n + 1);
    EXPECT_EQ(costs.keys_written.load(std::memory_order_relaxed), memory.keys());
    EXPECT_LE(costs.keys_read.load(std::memory_order_relaxed), n * std::min<std::size_t>(n, kMostDirect));
    EXPECT_LE(costs.bytes_written.load(std::memory_order_relaxed), n * (2 * blob.size() + 4));
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
      const std::string expected = "rank " + std::to_string(failing) + " cannot join the group of rank " +
                                   std::to_string(r) + ": no room here" + kAgain;
      EXPECT_EQ(errors[static_cast<std::size_t>(r)], r == failing ? "" : expected);
    }
  }
}

// Though what they await is another's, who never comes. Whatever it was: a timeout is one rank's own, for others may
// wait longer, and what all would find is said as it is.
TEST(Exchange, AReasonReachesThoseThatAwaitAnother) {
  const Error timeout(ErrorKind::kTimeout, "waited for long");
  const KnownToAll mismatch(ErrorKind::kMismatch, "the ranks differ");
  for (const Error* const error : {&timeout, static_cast<const Error*>(&mismatch)}) {
    for (const int size : {3, kMany}) {
      MemoryStore store;
      const auto errors = test::run_threads(size, [&](int rank) {
        if (rank == 2) return;
        if (rank == 1) return tell_failure(store, "job", rank, *error);
        try {
          exchange(store, "job", kHostTopic, rank, size, "blob", kLong);
        } catch (const Error& told) {
          const bool as_it_is = size == 3 || rank == 0;  // the others hear it of rank 0
          EXPECT_EQ(told.kind(), error == &mismatch && as_it_is ? ErrorKind::kMismatch : ErrorKind::kPeerLost);
          throw;
        }
      });
      for (int r = 0; r < size; ++r) {
        const std::string& text = errors[static_cast<std::size_t>(r)];
        EXPECT_EQ(text.find(error->what()) != std::string::npos, r == 0 || r > 2) << r << ": " << text;
        if (r > 0) continue;
        EXPECT_EQ(text, error == &timeout
                            ? std::string("rank 1 cannot join the group of rank 0: waited for long") + kAgain
                            : error->what());
      }
    }
  }
}

// A second try with the same id, where the first has left nothing else behind.
TEST(Exchange, ARankIsNotToldOfItself) {
  MemoryStore store;
  tell_failure(store, "job", 1, Error(ErrorKind::kTimeout, "waited for long"));
  EXPECT_NO_THROW(throw_if_told(store, "job", 1));
  EXPECT_THROW(throw_if_told(store, "job", 0), KnownToAll);
  EXPECT_NO_THROW(throw_if_told(store, "other job", 0));
}

// What was given stays in the store: who tries again with the same name is told what to do instead.
TEST(Exchange, ARankThatHasFailedUnderTheSameNameIsToldToTakeAnother) {
  MemoryStore store;
  const auto fails = [&](const char* id, const char* why) -> std::string {
    try {
      telling(store, id, 1, [&]() -> int { throw Error(ErrorKind::kTimeout, why); });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(fails("job", "first"), "first");
  EXPECT_EQ(fails("job", "second"),
            "second. This rank has failed under the same name in this store before: to form the group again, take "
            "another name");
  EXPECT_EQ(fails("another job", "first"), "first");
}

// Else whoever tells failures around it takes it for a reason of this rank's own.
TEST(Exchange, WhatAllKnowStaysThatWhenARankFailsAgain) {
  MemoryStore store, elsewhere;
  const auto known = []() -> int { throw KnownToAll(ErrorKind::kMismatch, "the ranks differ"); };
  for (int i = 0; i < 2; ++i) EXPECT_THROW(telling(store, "job", 1, known), KnownToAll);
  // What another rank has told is not told again, either.
  give_reason(store, "job", 0, "no room here");
  tell_failure(store, "job", 1, Error(ErrorKind::kTimeout, "waited for long"));
  try {
    telling(store, "job", 1, [&] { return exchange(store, "job", kHostTopic, 1, 2, "blob", kLong); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const KnownToAll& told) {
    EXPECT_NE(std::string(told.what()).find("no room here"), std::string::npos) << told.what();
    EXPECT_NE(std::string(told.what()).find("failed under the same name"), std::string::npos) << told.what();
    tell_failure(elsewhere, "job", 1, told);
  }
  EXPECT_NO_THROW(throw_if_told(elsewhere, "job", 0));
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
class LosingStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  std::string get(std::string_view key, milliseconds timeout) override {
    if (key == exchange_key("job", "topic", 7)) throw_error(ErrorKind::kPeerLost, "rank 7 has ended");
    return below_.get(key, timeout);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, milliseconds timeout) override {
    return Store::multi_get(keys, timeout);
  }
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

// A store that is gone when all is asked of it but whom it has refused.
class EndingStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  std::string get(std::string_view key, milliseconds timeout) override {
    if (key == kRefusedKey) throw_error(ErrorKind::kPeerLost, "the job's store is gone");
    return below_.get(key, timeout);
  }
};

TEST(Exchange, WhoDidNotComeIsNamedThoughTheStoreEnds) {
  MemoryStore memory;
  EndingStore store(memory);
  try {
    exchange(store, "job", "topic", 0, 2, "blob", milliseconds(10));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(e.what()).find("rank 1 did not come"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tutti
