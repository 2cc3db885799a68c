// Ranks as processes of which one dies while their group forms, and what the others must hear of it. The deadline lies
// behind the watchdog of each.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/store_process.h"
#include "communicator/thread_ranks.h"
#include "support/child_process.h"

namespace tutti::test {

inline constexpr const char* kName = "test";

// What a rank's process ends with.
enum Code : int { kNamed = 0, kOther = 1, kFormed = 2, kAnotherNamed = 3 };

inline CommunicatorOptions options_of(const std::string& layout, int rank) {
  CommunicatorOptions options;
  options.timeout = std::chrono::minutes(10);
  options.config.log_level = "error";
  options.config.host_id = "host " + std::string(1, layout[static_cast<std::size_t>(rank)]);
  return options;
}

struct Survivor {
  Store& store;
  const std::string& layout;
  int rank, victim;

  // Or a rank of its host is, that has noticed first, gave up, and had no connection yet by which to say why.
  bool is_named(const std::string& text) const {
    if (text.find("rank " + std::to_string(victim)) != std::string::npos) return true;
    for (std::size_t r = 0; r < layout.size(); ++r) {
      const std::string gone = "rank " + std::to_string(r) + " died or cannot be reached";
      if (layout[r] == layout[static_cast<std::size_t>(victim)] && text.find(gone) != std::string::npos) return true;
    }
    return false;
  }
};

// `form`, and calls in what it has made, until something fails. Nobody ends before all survivors are so far: the end of
// one would be a loss to the others.
inline int lost(const Survivor& self, const std::function<std::shared_ptr<Communicator>()>& form) {
  std::shared_ptr<Communicator> group;
  const Error error = error_of([&] {
    group = form();
    for (;;) group->run(Call{});
  });
  const std::string text = error.what();
  const Code code = error.kind() != ErrorKind::kPeerLost ? kOther : self.is_named(text) ? kNamed : kAnotherNamed;
  if (code != kNamed) std::fprintf(stderr, "rank %d: another error: %s\n", self.rank, text.c_str());
  std::vector<std::string> keys;
  for (int r = 0; r < static_cast<int>(self.layout.size()); ++r) {
    if (r != self.victim) keys.push_back("finished " + std::to_string(r));
  }
  self.store.set("finished " + std::to_string(self.rank), "");
  self.store.multi_get(keys, std::chrono::seconds(60));
  return code;
}

using Ranks = std::vector<std::unique_ptr<ChildProcess>>;

// A process a rank, which ends with what `body(store, rank)` returns.
template <class Body>
Ranks start_ranks(const std::string& layout, StoreProcess& stores, const Body& body) {
  Ranks ranks;
  for (int r = 0; r < static_cast<int>(layout.size()); ++r) {
    ranks.push_back(std::make_unique<ChildProcess>([&, r] { return body(*stores.connect(), r); }));
  }
  return ranks;
}

// Several stores and their ranks at once, since all of them wait for most of their time. They end the last one first:
// processes that were begun later keep the stores of earlier ones alive.
class Worlds {
 public:
  struct World {
    explicit World(std::string told) : what(std::move(told)) {}
    const std::string what;
    StoreProcess stores;
    Ranks ranks;
  };

  Worlds() = default;
  ~Worlds() {
    end([](World&) {});
  }
  Worlds(const Worlds&) = delete;
  Worlds& operator=(const Worlds&) = delete;

  template <class Body>
  void start(const std::string& layout, const std::string& what, const Body& body) {
    World& world = *worlds_.emplace_back(std::make_unique<World>(what));
    world.ranks = start_ranks(layout, world.stores, body);
  }
  template <class End>
  void end(const End& each) {
    for (; !worlds_.empty(); worlds_.pop_back()) each(*worlds_.back());
  }

 private:
  std::vector<std::unique_ptr<World>> worlds_;
};

// All survivors have lost a peer, in time. At a random moment it may be a survivor: one that has noticed first and
// left.
inline void expect_told(Ranks& ranks, int victim, const std::string& what) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (static_cast<int>(r) == victim) continue;
    const int code = ranks[r]->join();
    EXPECT_TRUE(code == kNamed || code == kAnotherNamed) << "rank " << r << " ended with " << code << ", " << what;
  }
}

inline void expect_named(Ranks& ranks, int victim, const std::string& what) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (static_cast<int>(r) == victim) continue;
    EXPECT_EQ(ranks[r]->join(), kNamed) << "rank " << r << ", " << what;
  }
}

// The victim has died. False where it has formed its group before it came to that.
inline bool victim_died(Ranks& ranks, int victim, const std::string& what) {
  const int code = ranks[static_cast<std::size_t>(victim)]->join();
  const bool died = code == 1000 + SIGKILL;
  EXPECT_EQ(code, died ? 1000 + SIGKILL : int{kFormed}) << what;
  return died;
}

}  // namespace tutti::test
