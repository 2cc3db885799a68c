// A rank that fails while its group forms, and lives on: all others hear of it, whoever they wait for, and whatever it
// was; a timeout too, for others may wait longer. Ranks are processes, and their deadline lies behind the watchdog of
// each.
#include <gtest/gtest.h>

#include <cstdio>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/interruption.h"
#include "bootstrap/exchange.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/limits.h"
#include "bootstrap/tcp_store.h"
#include "communicator/forming_deaths.h"
#include "communicator/thread_ranks.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

constexpr const char* kFailure = "the store of one rank has failed";

// A store that fails its rank once, in the place of its operation of this number, or behind it.
class FailingStore final : public ForwardingStore {
 public:
  FailingStore(Store& below, int number, bool behind, ErrorKind kind)
      : ForwardingStore(below), left_(number), behind_(behind), kind_(kind) {}

 private:
  void begin() override {
    if (--left_ == 0 && !behind_) throw_error(kind_, kFailure);
  }
  void done() override {
    if (left_ == 0 && behind_) throw_error(kind_, kFailure);
  }
  int left_;
  const bool behind_;
  const ErrorKind kind_;
};

// Why the victim has failed, or, where the group had formed by then, that it has left. Nobody ends before all survivors
// are so far.
int told(const Survivor& self) {
  const int size = static_cast<int>(self.layout.size());
  std::shared_ptr<Communicator> group;
  const Error error = error_of([&] {
    group = Communicator::create(self.store, kName, self.rank, size, options_of(self.layout, self.rank));
    for (;;) group->run(Call{});
  });
  const std::string text = error.what();
  const bool right = text.find(kFailure) != std::string::npos || self.is_named(text);
  if (!right) std::fprintf(stderr, "rank %d: another error: %s\n", self.rank, text.c_str());
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) {
    if (r != self.victim) keys.push_back("finished " + std::to_string(r));
  }
  self.store.set("finished " + std::to_string(self.rank), "");
  self.store.multi_get(keys, std::chrono::seconds(60));
  return right ? kNamed : kOther;
}

int fail(const Survivor& self, int number, bool behind, ErrorKind kind) {
  const int size = static_cast<int>(self.layout.size());
  FailingStore failing(self.store, number, behind, kind);
  try {
    Communicator::create(failing, kName, self.rank, size, options_of(self.layout, self.rank));
  } catch (const Error&) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer != self.rank) self.store.get("finished " + std::to_string(peer), std::chrono::seconds(60));
    }
    return kNamed;
  }
  return kFormed;  // it leaves
}

TEST(FormingFailures, AtEveryStepOfAStore) {
  for (const std::string layout : {"aa", "ab", "aab", "aabb"}) {
    for (int victim = 0; victim < static_cast<int>(layout.size()); ++victim) {
      for (int variant = 0, failed = 1; failed == 1; variant += kSanitized ? 3 : 1) {
        const int number = 1 + variant / 4;
        const bool behind = variant % 2 == 1;
        const ErrorKind kind = variant % 4 < 2 ? ErrorKind::kTimeout : ErrorKind::kExhausted;
        StoreProcess stores;
        Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
          const Survivor self{store, layout, r, victim};
          return r == victim ? fail(self, number, behind, kind) : told(self);
        });
        const std::string what = layout + ": rank " + std::to_string(victim) + " fails " +
                                 (behind ? "behind" : "in place of") + " its operation " + std::to_string(number);
        expect_named(ranks, victim, what);
        const int code = ranks[static_cast<std::size_t>(victim)]->join();
        EXPECT_TRUE(code == kNamed || code == kFormed) << code << ", " << what;
        failed = code == kNamed || kind == ErrorKind::kTimeout ? 1 : 0;  // some waits end by one, and go on
        if (HasFailure()) return;
      }
    }
  }
}

// A rank whose time is over before another has come at all.
TEST(FormingFailures, OfOneWhoseTimeIsOver) {
  const std::string layout = "aab";
  StoreProcess stores;
  Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
    if (r == 2) {  // comes when all is over
      store.multi_get({"finished 0", "finished 1"}, std::chrono::seconds(60));
      return int{kNamed};
    }
    CommunicatorOptions options = options_of(layout, r);
    if (r == 0) options.timeout = std::chrono::milliseconds(200);
    const Error error = error_of([&] { Communicator::create(store, kName, r, 3, options); });
    const std::string text = error.what();
    store.set("finished " + std::to_string(r), "");
    const bool right = text.find("rank 0 waited 200 ms") != std::string::npos &&
                       text.find("rank 2 did not come") != std::string::npos &&
                       error.kind() == (r == 0 ? ErrorKind::kTimeout : ErrorKind::kPeerLost);
    if (!right) std::fprintf(stderr, "rank %d: another error: %s\n", r, text.c_str());
    return int{right ? kNamed : kOther};
  });
  expect_named(ranks, -1, "the time of rank 0 is over");
}

// Rank 2 fails when `quick` has what it awaits of all, and has turned to its host; `slow` gets it when `quick` has
// finished, and does not save a `quick` that nobody has told: its own wait may not end as one whose time is over, after
// which it would look, and tell.
class SlowRankStore final : public ForwardingStore {
 public:
  SlowRankStore(Store& below, int rank, int quick, int slow)
      : ForwardingStore(below), rank_(rank), quick_(quick), slow_(slow) {}

  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    if (rank_ == slow_) await_quick();
    if (rank_ == 2) below_.get("the quick one has read", kLong);
    if (rank_ == 2) throw_error(ErrorKind::kExhausted, kFailure);
    auto values = below_.multi_get(keys, timeout);
    if (rank_ == quick_) below_.set("the quick one has read", "");
    return values;
  }

 private:
  void await_quick() {
    try {
      below_.get("finished " + std::to_string(quick_), kLong);
    } catch (const Error& error) {
      throw_error(ErrorKind::kInternal, "rank " + std::to_string(quick_) + " has been told nothing: " + error.what());
    }
  }
  const int rank_, quick_, slow_;
};

void expect_told_though_slow(const std::string& layout, int quick, int slow) {
  StoreProcess stores;
  Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
    SlowRankStore held(store, r, quick, slow);
    const Error error = error_of([&] { Communicator::create(held, kName, r, 3, options_of(layout, r)); });
    store.set("finished " + std::to_string(r), "");
    const std::string text = error.what();
    const bool right = text.find(r == 2 ? kFailure : "rank 2 cannot join") != std::string::npos;
    if (!right) std::fprintf(stderr, "rank %d: another error: %s\n", r, text.c_str());
    return int{right ? kNamed : kOther};
  });
  expect_named(ranks, -1, "rank 2 fails, and rank " + std::to_string(slow) + " is slow");
}

TEST(FormingFailures, WhileTheLeaderIsSlow) { expect_told_though_slow("aaa", 1, 0); }

// The leader awaits nothing of rank 2, which is of another host.
TEST(FormingFailures, WhileAMemberIsSlow) { expect_told_though_slow("aab", 0, 1); }

// Rank 1 has what the last exchange gives it, and fails when rank 0 has formed the group.
class LastExchangeStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    auto values = below_.multi_get(keys, timeout);
    if (keys.front() != exchange_key(kName, kNetworkTopic, 0)) return values;
    below_.get("rank 0 has formed", kLong);
    throw_error(ErrorKind::kExhausted, kFailure);
  }
};

// Rank 0 looks into no store any more: it is told in the memory of its host.
TEST(FormingFailures, OnceAnotherOfItsHostHasFormed) {
  const std::string layout = "aab";
  StoreProcess stores;
  Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
    LastExchangeStore failing(store);
    const Error error = error_of([&] {
      const auto group = Communicator::create(r == 1 ? failing : store, kName, r, 3, options_of(layout, r));
      if (r == 2) store.get("finished 0", kLong);
      if (r != 0) return;
      store.set("rank 0 has formed", "");
      char byte = 0;
      group->recv(&byte, 1, DataType::kUint8, 1, 0, kLong);
    });
    const std::string text = error.what();
    if (r == 0) store.set("finished 0", "");
    if (r == 1) store.get("finished 0", kLong);  // its end would be a reason, too
    const bool right = r == 2 ? text.empty() : text.find(kFailure) != std::string::npos;
    if (!right) std::fprintf(stderr, "rank %d: another error: %s\n", r, text.c_str());
    return int{right ? kNamed : kOther};
  });
  expect_named(ranks, -1, "rank 1 fails, and rank 0 has formed");
}

// In the midst of an operation of the store, as by Ctrl-C. Ranks are threads here.
TEST(FormingFailures, OfOneThatIsInterrupted) {
  TcpStoreOptions serve;
  serve.serve = true;
  TcpStore first(serve);
  TcpStoreOptions ask;
  ask.port = first.port();
  TcpStore second(ask);
  const auto form = [](Store& store, int rank) {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    options.config.log_level = "error";
    options.config.host_id = std::to_string(rank);
    Communicator::create(store, "interrupted", rank, 3, options);  // rank 2 does not come
  };
  std::promise<Error> told;
  std::thread other([&] { told.set_value(error_of([&] { form(first, 0); })); });
  const auto raise = [](std::string& name) noexcept -> std::exception_ptr {
    static int asked = 0;
    if (++asked < 10) return nullptr;
    name = "KeyboardInterrupt";
    return std::make_exception_ptr(std::runtime_error(name));
  };
  EXPECT_THROW(interruptible(raise, {}, [&] { form(second, 1); }), std::runtime_error);
  other.join();
  const Error error = told.get_future().get();
  EXPECT_NE(error.kind(), ErrorKind::kTimeout) << error.what();
  EXPECT_NE(std::string(error.what()).find("interrupted"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace tutti::test
