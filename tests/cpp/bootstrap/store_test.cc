// What every store promises, on each of ours; and the exchange over it.
#include "tutti/store.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "bootstrap/exchange.h"
#include "bootstrap/limits.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/prefix_store.h"
#include "bootstrap/ranks.h"
#include "bootstrap/tcp_store.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// A world of stores, one a rank, that meet.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<Store> store_of(int rank) = 0;
};

class MemoryWorld final : public World {
 public:
  std::shared_ptr<Store> store_of(int) override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<MemoryStore>();
};

class TcpWorld final : public World {
 public:
  std::shared_ptr<Store> store_of(int) override {
    TcpStoreOptions options;
    options.port = server_.port();
    options.secret = "secret";
    options.timeout = kLong;
    return std::make_shared<TcpStore>(options);
  }

 private:
  TcpStoreServer server_{"127.0.0.1", 0, "secret"};
};

class PrefixWorld final : public World {
 public:
  std::shared_ptr<Store> store_of(int rank) override {
    return std::make_shared<PrefixStore>("part", below_.store_of(rank));
  }

 private:
  TcpWorld below_;
};

template <class W>
class StoreTest : public testing::Test {
 protected:
  W world_;
};
using Worlds = testing::Types<MemoryWorld, TcpWorld, PrefixWorld>;
TYPED_TEST_SUITE(StoreTest, Worlds);

ErrorKind kind_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

TYPED_TEST(StoreTest, KeepsAnyBytes) {
  const auto a = this->world_.store_of(0);
  const auto b = this->world_.store_of(1);
  const std::string value("\0\xff\n", 3);
  a->set("key", value);
  a->set("", "of the empty key");
  a->set("big", std::string(3'000'000, 'x'));
  EXPECT_EQ(b->get("key", kLong), value);
  EXPECT_EQ(b->get("", kLong), "of the empty key");
  EXPECT_EQ(b->get("big", kLong), std::string(3'000'000, 'x'));
  a->set("key", "");
  // A set is not waited for: the setter's next answer tells that it is done.
  a->get("key", kLong);
  EXPECT_EQ(b->get("key", kLong), "");
}

TYPED_TEST(StoreTest, GetWaitsForTheKey) {
  const auto errors = test::run_threads(2, [&](int rank) {
    const auto store = this->world_.store_of(rank);
    if (rank == 0) {
      EXPECT_EQ(store->get("first", kLong), "1");
      store->set("second", "2");
    } else {
      store->set("first", "1");
      EXPECT_EQ(store->multi_get({"first", "second", "first"}, kLong), (std::vector<std::string>{"1", "2", "1"}));
    }
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TYPED_TEST(StoreTest, TimeoutNamesTheKeyAndTheStoreGoesOn) {
  const auto store = this->world_.store_of(0);
  store->set("there", "1");
  try {
    store->multi_get({"there", "not there"}, milliseconds(20));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(e.what()).find("not there"), std::string::npos) << e.what();
  }
  EXPECT_EQ(kind_of([&] { store->get("neither", milliseconds(0)); }), ErrorKind::kTimeout);
  EXPECT_EQ(store->get("there", milliseconds(0)), "1");
  EXPECT_TRUE(store->multi_get({}, milliseconds(0)).empty());
}

TYPED_TEST(StoreTest, AddCountsEveryRank) {
  constexpr int kSize = 4;
  const auto errors = test::run_threads(kSize, [&](int rank) {
    const auto store = this->world_.store_of(rank);
    for (int i = 0; i < 50; ++i) store->add("count", rank);
  });
  EXPECT_EQ(errors, std::vector<std::string>(kSize));
  const auto store = this->world_.store_of(0);
  EXPECT_EQ(store->add("count", 0), 50 * (1 + 2 + 3));
  EXPECT_EQ(store->add("count", -400), -100);
  EXPECT_EQ(store->get("count", kLong), "-100");
  store->set("word", "one");
  EXPECT_EQ(kind_of([&] { store->add("word", 1); }), ErrorKind::kInvalidArgument);
}

TYPED_TEST(StoreTest, ErasedKeysAreAwaitedAgain) {
  const auto store = this->world_.store_of(0);
  store->set("key", "1");
  store->erase("key");
  store->erase("never set");
  EXPECT_EQ(kind_of([&] { store->get("key", milliseconds(10)); }), ErrorKind::kTimeout);
  EXPECT_EQ(store->add("key", 3), 3);
}

TYPED_TEST(StoreTest, ExchangeGivesAllBlobsInRankOrder) {
  for (const int size : {1, 2, 3, 8, kMostDirect + 1}) {
    const std::string id = "world of " + std::to_string(size);
    const auto errors = test::run_threads(size, [&](int rank) {
      const auto store = this->world_.store_of(rank);
      const auto blobs = exchange(*store, id, "names", rank, size, "blob " + std::to_string(rank), kLong);
      ASSERT_EQ(blobs.size(), static_cast<std::size_t>(size));
      for (int r = 0; r < size; ++r) EXPECT_EQ(blobs[static_cast<std::size_t>(r)], "blob " + std::to_string(r));
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TYPED_TEST(StoreTest, ExchangeNamesTheRanksThatDidNotCome) {
  const auto store = this->world_.store_of(0);
  store->set(store_key("world", "names", "3"), "came");
  try {
    exchange(*store, "world", "names", 0, 5, "blob", milliseconds(30));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kTimeout);
    EXPECT_NE(std::string(e.what()).find("ranks 1, 2 and 4 did not come"), std::string::npos) << e.what();
  }
}

TEST(StoreKey, DifferentPartsGiveDifferentKeys) {
  const std::vector<std::string> parts = {"", "a", "a1", "2", "12", "a/", "/", ":", "1:a", "0:", "a/0:"};
  std::set<std::string> keys;
  std::size_t count = 0;
  for (const auto& id : parts) {
    for (const auto& topic : parts) {
      for (const auto& detail : parts) {
        keys.insert(store_key(id, topic, detail));
        ++count;
      }
    }
  }
  EXPECT_EQ(keys.size(), count);
}

TEST(PrefixStore, PrefixesDoNotMeet) {
  const auto below = std::make_shared<MemoryStore>();
  PrefixStore one("a1", below);
  PrefixStore other("a", below);
  PrefixStore inner("", std::make_shared<PrefixStore>("a", below));
  one.set("2", "one");
  other.set("12", "other");
  inner.set("12", "inner");
  EXPECT_EQ(one.get("2", kLong), "one");
  EXPECT_EQ(other.get("12", kLong), "other");
  EXPECT_EQ(below->keys(), 3u);
}

TEST(Exchange, RefusesARankThatDoesNotExist) {
  MemoryStore store;
  EXPECT_EQ(kind_of([&] { exchange(store, "world", "names", 2, 2, "", kLong); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { exchange(store, "world", "names", -1, 2, "", kLong); }), ErrorKind::kInvalidArgument);
}

}  // namespace
}  // namespace tutti
