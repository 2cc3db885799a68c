// A process that is killed while its group forms, at every step and at any moment: the others hear at once that it
// died, and, but for random moments, which rank it was. Ranks are processes, and the deadline lies behind the watchdog
// of each.
#include "communicator/forming_deaths.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/forwarding_store.h"
#include "bootstrap/meeting_place.h"
#include "communicator/group_bootstrap.h"
#include "communicator/subgroup.h"
#include "support/sanitized.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

// A store whose rank dies once it has done so many operations.
class DyingStore final : public ForwardingStore {
 public:
  DyingStore(Store& below, int operations) : ForwardingStore(below), left_(operations) {}

 private:
  void done() override {
    if (--left_ == 0) ::raise(SIGKILL);
  }
  int left_;
};

enum class End { kDies, kDiesBeforeTheyLook, kGivesUp };

// A store where the victim is the first of those who sign that they have seen all, and ends there.
class PublishersStore final : public ForwardingStore {
 public:
  PublishersStore(Store& below, bool victim, End end) : ForwardingStore(below), victim_(victim), end_(end) {}

  void set(std::string_view key, std::string_view value) override {
    below_.set(key, value);
    if (!victim_ && end_ == End::kDiesBeforeTheyLook) await_victim();
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    if (!victim_) await_victim();
    const std::int64_t sum = below_.add(key, amount);
    if (!victim_) return sum;
    below_.set("was first", std::to_string(::getpid()));
    if (end_ != End::kGivesUp) ::raise(SIGKILL);
    throw_error(ErrorKind::kInternal, "no more room");
  }

 private:
  void await_victim() {
    const pid_t pid = std::stoi(below_.get("was first", std::chrono::seconds(60)));
    if (end_ == End::kGivesUp) return;
    const UniqueFd victim = open_pidfd(pid);  // empty: it has been reaped
    pollfd ended{victim.get(), POLLIN, 0};
    if (victim) ::poll(&ended, 1, 60'000);
  }
  const bool victim_;
  const End end_;
};

// A store that gives one rank's values changed.
class ChangingStore final : public ForwardingStore {
 public:
  ChangingStore(Store& below, std::size_t rank) : ForwardingStore(below), rank_(rank) {}

  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    auto values = below_.multi_get(keys, timeout);
    values[rank_].back() ^= 1;
    return values;
  }

 private:
  const std::size_t rank_;
};

// A store whose first rank is told that another has died when its peers have all that they await in common.
class LateStore final : public ForwardingStore {
 public:
  LateStore(Store& below, int rank) : ForwardingStore(below), rank_(rank) {}

  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    if (rank_ == 0) {
      below_.get("others have read", std::chrono::seconds(30));
      throw_error(ErrorKind::kPeerLost, "rank 7 died early");
    }
    auto values = below_.multi_get(keys, timeout);
    below_.set("others have read", "");
    return values;
  }

 private:
  const int rank_;
};

TEST(FormingDeaths, AtEveryStepOfAStore) {
  for (const std::string layout : {"aa", "aaa", "aabb"}) {
    const int size = static_cast<int>(layout.size());
    for (int victim = 0; victim < size; ++victim) {
      bool died = true;
      for (int operations = 1; died;) {
        Worlds worlds;
        for (int i = 0; i < 4; ++i, operations += kSanitized ? 2 : 1) {
          const std::string what =
              layout + ": rank " + std::to_string(victim) + " dies after " + std::to_string(operations) + " operations";
          worlds.start(layout, what, [&](Store& store, int r) {
            if (r != victim) {
              return lost({store, layout, r, victim},
                          [&] { return Communicator::create(store, kName, r, size, options_of(layout, r)); });
            }
            DyingStore dying(store, operations);
            Communicator::create(dying, kName, r, size, options_of(layout, r));
            return int{kFormed};  // it leaves
          });
        }
        worlds.end([&](Worlds::World& world) {
          expect_named(world.ranks, victim, world.what);
          died = victim_died(world.ranks, victim, world.what) && died;
        });
        if (HasFailure()) return;
      }
    }
  }
}

// Ends the victim some time after `begun()` has returned in the test's process: up to where the group has formed.
class Killer {
 public:
  Killer() : seed_(std::random_device{}()), random_(seed_) {}

  int choose(int most) { return std::uniform_int_distribution<int>(0, most)(random_); }
  void kill(const ChildProcess& victim) {
    const std::int64_t until = now_ns() + choose(8'000'000);
    while (now_ns() < until) {
    }
    ::kill(victim.pid(), SIGKILL);
  }
  std::string seed() const { return "seed " + std::to_string(seed_); }

 private:
  unsigned seed_;
  std::mt19937 random_;
};

// Soon after the victim has set `key`; the others hear of it.
void kill_behind(std::string_view key, Killer& killer, StoreProcess& stores, Ranks& ranks, int victim,
                 const std::string& layout) {
  stores.connect_here()->get(key, std::chrono::seconds(30));
  killer.kill(*ranks[static_cast<std::size_t>(victim)]);
  expect_told(ranks, victim, layout + ", " + killer.seed());
}

constexpr int kRounds = 8;

TEST(FormingDeaths, AtAnyMomentFromAStore) {
  Killer killer;
  for (int round = 0; round < kRounds; ++round) {
    const std::string layout = round % 2 == 0 ? "aaa" : "aabb";
    const int size = static_cast<int>(layout.size()), victim = killer.choose(size - 1);
    StoreProcess stores;
    Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
      return lost({store, layout, r, victim},
                  [&] { return Communicator::create(store, kName, r, size, options_of(layout, r)); });
    });
    // Before it has given its card it is one that never comes.
    kill_behind(exchange_key(kName, kHostTopic, victim), killer, stores, ranks, victim, layout);
    if (HasFailure()) return;
  }
}

// The meeting place is the test's own process, which stays.
TEST(FormingDeaths, AtAnyMomentFromAnId) {
  Killer killer;
  for (int round = 0; round < kRounds; ++round) {
    const std::string layout = round % 2 == 0 ? "aaa" : "aab";
    const int size = static_cast<int>(layout.size()), victim = killer.choose(size - 1);
    Gate gate;
    StoreProcess stores;  // carries the id
    Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
      const std::string text = store.get("id", std::chrono::seconds(30));
      GroupId id;
      std::copy_n(text.begin(), id.size(), id.begin());
      return lost({store, layout, r, victim}, [&] { return join_group(id, r, size, options_of(layout, r)); });
    });
    ChildProcess maker([&] {
      const GroupId id = make_group_id(Config{}, "localhost");
      const auto store = stores.connect();
      store->set("id", std::string_view(id.data(), id.size()));
      const auto place = reach(*decode_meeting_place(id), std::chrono::seconds(30));
      try {
        place->get(exchange_key("group", kHostTopic, victim), std::chrono::seconds(30));
      } catch (const Error&) {  // it is dead already
      }
      store->set("begun", "");
      return gate.wait() ? 0 : 1;
    });
    kill_behind("begun", killer, stores, ranks, victim, layout);
    gate.open();
    EXPECT_EQ(maker.join(), 0);
    if (HasFailure()) return;
  }
}

TEST(FormingDeaths, AtAnyMomentOfASplit) {
  Killer killer;
  for (int round = 0; round < kRounds; ++round) {
    const std::string layout = round % 2 == 0 ? "aaa" : "aab";
    const int size = static_cast<int>(layout.size()), victim = killer.choose(size - 1);
    StoreProcess stores;
    Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
      return lost({store, layout, r, victim}, [&] {
        const auto parent = Communicator::create(store, kName, r, size, options_of(layout, r));
        if (r == victim) store.set("begun", "");
        return split_group(*parent, 0, r, "part");
      });
    });
    kill_behind("begun", killer, stores, ranks, victim, layout);
    if (HasFailure()) return;
  }
}

TEST(FormingDeaths, AtAnyMomentOfASubgroup) {
  Killer killer;
  for (int round = 0; round < 2 * kRounds; ++round) {
    std::string layout = round % 2 == 0 ? "aaa" : "aab";
    if (round % 4 == 3) layout = std::string(9, 'a') + std::string(9, 'b');  // all hear of the first alone
    const int size = static_cast<int>(layout.size()), victim = killer.choose(size - 1);
    StoreProcess stores;
    Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
      return lost({store, layout, r, victim}, [&] {
        const auto parent = Communicator::create(store, kName, r, size, options_of(layout, r));
        if (r == victim) store.set("begun", "");
        return form_in(*parent, all_ranks(size), "part", [&] { return options_of(layout, r); });
      });
    });
    kill_behind("begun", killer, stores, ranks, victim, layout);
    if (HasFailure()) return;
  }
}

// The survivors are a group of their own, or are told who died.
TEST(FormingDeaths, AtAnyMomentOfAShrink) {
  Killer killer;
  for (int round = 0; round < kRounds; ++round) {
    const std::string layout = round % 2 == 0 ? "aaa" : "aab";
    const int size = static_cast<int>(layout.size()), victim = killer.choose(2);
    // Alone on its host it is given up in time where it has not signed in.
    const std::chrono::milliseconds patience(layout[static_cast<std::size_t>(victim)] == 'b' ? 3'000 : 0);
    StoreProcess stores;
    Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
      const auto parent = Communicator::create(store, kName, r, size, options_of(layout, r));
      store.set("begun " + std::to_string(r), "");
      std::vector<int> members;
      return lost({store, layout, r, victim}, [&] {
        auto smaller = parent->shrink(store, "smaller", patience, &members);
        if (static_cast<int>(members.size()) == size) return smaller;
        smaller->run(Call{});
        throw_error(ErrorKind::kPeerLost, "rank " + std::to_string(victim) + " is left out");
      });
    });
    // All have the group that is to shrink.
    for (int r = 0; r < size; ++r) {
      stores.connect_here()->get("begun " + std::to_string(r), std::chrono::seconds(30));
    }
    killer.kill(*ranks[static_cast<std::size_t>(victim)]);
    expect_told(ranks, victim, layout + ", " + killer.seed());
    if (HasFailure()) return;
  }
}

// Of the rank that was to publish who is there: dead, or ended by an error of its own, before it has.
TEST(FormingDeaths, OfTheOneThatAllAwaitInAShrink) {
  for (const End end : {End::kDies, End::kDiesBeforeTheyLook, End::kGivesUp}) {
    const int victim = end == End::kGivesUp ? 1 : 0;  // also one that is alone on its host, where it can say so itself
    Worlds worlds;
    for (const std::string layout : {"aab", "aba", "aaa"}) {
      worlds.start(layout, layout + ", end " + std::to_string(static_cast<int>(end)), [&](Store& store, int r) {
        const auto parent = Communicator::create(store, kName, r, 3, options_of(layout, r));
        PublishersStore shared(store, r == victim, end);
        const auto shrink = [&] { return parent->shrink(shared, "smaller", {}, nullptr); };
        if (r != victim) return lost({store, layout, r, victim}, shrink);
        return int{error_of(shrink).kind() == ErrorKind::kInternal ? kNamed : kOther};
      });
    }
    worlds.end([&](Worlds::World& world) {
      expect_named(world.ranks, victim, world.what);
      const int code = world.ranks[static_cast<std::size_t>(victim)]->join();
      EXPECT_EQ(code, end == End::kGivesUp ? kNamed : 1000 + SIGKILL) << world.what;
    });
    if (HasFailure()) return;
  }
}

// Alone on its host: there nobody sees it die. The others give it up in the time that the shrink has, not the group's.
TEST(FormingDeaths, InAShrinkWhoseStoreSeesNobodyDie) {
  const std::string layout = "aab";
  Worlds worlds;
  // Of the victim: its sign-in; all sign-ins, and that it has seen them first; their list, and its card.
  for (const int operations : {1, 5, 7}) {
    worlds.start(layout, "operation " + std::to_string(operations), [&](Store& store, int r) {
      const auto parent = Communicator::create(store, kName, r, 3, options_of(layout, r));
      DyingStore dying(store, r == 2 ? operations : -1);
      std::vector<int> members;
      const Error error = error_of([&] {
        auto smaller = parent->shrink(dying, "smaller", std::chrono::seconds(3), &members);
        if (members.size() == 2) throw_error(ErrorKind::kTimeout, "rank 2 has not signed in");
        for (;;) smaller->run(Call{});
      });
      const bool named = std::string(error.what()).find("rank 2") != std::string::npos;
      if (!named) std::fprintf(stderr, "rank %d: another error: %s\n", r, error.what());
      return int{named ? kNamed : kOther};
    });
  }
  worlds.end([](Worlds::World& world) { expect_named(world.ranks, 2, world.what); });
}

// What one rank alone finds wrong ends the others' forming, too.
TEST(FormingDeaths, OfOneThatTheStoreIsNotTrueTo) {
  const std::string layout = "ab";
  StoreProcess stores;
  Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
    ChangingStore changed(store, 1);
    Store& own = r == 1 ? static_cast<Store&>(changed) : store;
    const Error error = error_of([&] { Communicator::create(own, kName, r, 2, options_of(layout, r)); });
    const bool found = std::string(error.what()).find("does not give back what rank 1 put") != std::string::npos;
    const ErrorKind kind = r == 1 ? ErrorKind::kMismatch : ErrorKind::kPeerLost;
    return int{found && error.kind() == kind ? kNamed : kOther};
  });
  expect_named(ranks, -1, "the store changes rank 1's card");
}

// The leader of a host fails while the others already turn to it.
TEST(FormingDeaths, OfWhatTheLeaderAloneIsTold) {
  const std::string layout = "aa";
  StoreProcess stores;
  Ranks ranks = start_ranks(layout, stores, [&](Store& store, int r) {
    LateStore late(store, r);
    const Error error = error_of([&] { Communicator::create(late, kName, r, 2, options_of(layout, r)); });
    const bool told = std::string(error.what()).find("rank 7 died early") != std::string::npos;
    return int{told && error.kind() == ErrorKind::kPeerLost ? kNamed : kOther};
  });
  expect_named(ranks, -1, "rank 0 is told alone");
}

}  // namespace
}  // namespace tutti::test
