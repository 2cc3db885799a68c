// Memory that is refused to one rank, or to the library's threads, in the course of something that all ranks do: every
// rank gets what is right, or an Error, and nobody waits until a deadline for one that could not go on.
//
// One allocation is refused, of hundreds every so-manyth: what is told takes memory of its own. A rank that finds none
// even for that says nothing, and the others hear of it at their deadline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <limits>
#include <optional>

#include "bootstrap/forwarding_store.h"
#include "bootstrap/memory_store.h"
#include "communicator/calls.h"
#include "communicator/kept_endpoint.h"
#include "communicator/refused_memory.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {

using Group = std::shared_ptr<Communicator>;

// Whoever waits in it looks up often: what others say where nobody waits is found at once. Its memory is not the
// rank's.
class ShortStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    return ForwardingStore::get(key, std::min(timeout, kLongest));
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    return ForwardingStore::multi_get(keys, std::min(timeout, kLongest));
  }

 private:
  static constexpr std::chrono::milliseconds kLongest{5};
};

struct Rank {
  Store& store;
  const std::string& layout;  // the host of each rank
  int rank;
  std::string plan_path{};

  int size() const { return static_cast<int>(layout.size()); }
  Group create() const { return Communicator::create(store, "test", rank, size(), options()); }
  CommunicatorOptions options() const {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(20);
    options.config.log_level = "error";
    options.config.host_id = "host " + layout.substr(static_cast<std::size_t>(rank), 1);
    options.config.plan_path = plan_path;
    return options;
  }
};

// What the ranks do before memory is refused, and while it is: gives the group that is tried then.
struct Scene {
  std::function<Group(const Rank&)> before = [](const Rank&) { return nullptr; };
  std::function<Group(const Rank&, const Group&)> during;
  std::string plan_path{};
};

// Who finds no memory, where, and how often.
struct Want {
  std::string layout;
  int victim = 0;
  Of of = Of::kThisThread;
  Which which = Which::kOne;
  long n = 0;
};

struct End {
  std::optional<Error> error;
  bool other = false;  // it has thrown something else
  bool wrong = false;  // it has got something else than what was sent
};

// `act()`, and once more where it was refused and has sent nothing: the others wait for it.
template <class Act>
auto again(Communicator& group, const Act& act) {
  const std::uint64_t before = group.sequence();
  try {
    return act();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kExhausted || group.failure() || group.sequence() != before) throw;
    return act();
  }
}

inline void run_rank(const Scene& scene, const Want& want, int r, Store& below, std::barrier<>& all, End& end) {
  const bool hit = r == want.victim;
  ShortStore store(below);
  const Rank rank{store, want.layout, r, scene.plan_path};
  hit&& want.of == Of::kThisThread ? count_me() : spare_me();
  Group before, made;
  std::optional<Refusal> refusal;
  std::vector<float> x(1000, static_cast<float>(r + 1));
  const float sum = static_cast<float>(rank.size() * (rank.size() + 1)) / 2;
  try {
    before = scene.before(rank);
  } catch (const std::exception&) {
    end.other = true;
  }
  all.arrive_and_wait();
  if (hit) refusal.emplace(want.of, want.which, want.n);
  all.arrive_and_wait();
  try {
    made = scene.during(rank, before);
    made->run(all_reduce(x));
    end.wrong =
        made->size() == rank.size() && std::any_of(x.begin(), x.end(), [&](float value) { return value != sum; });
  } catch (const Error& error) {
    end.error = error;
  } catch (...) {
    end.other = true;
  }
  if (end.error || end.other) made.reset(), before.reset();  // it leaves: the others may have formed all the same
  all.arrive_and_wait();
}

struct Ends {
  std::vector<End> of;
  long refused = 0, counted = 0;
};

inline Ends run(const Scene& scene, const Want& want) {
  const auto size = want.layout.size();
  MemoryStore store;
  std::barrier<> all(static_cast<std::ptrdiff_t>(size));
  Ends ends{std::vector<End>(size)};
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { run_rank(scene, want, static_cast<int>(r), store, all, ends.of[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  ends.refused = Refusal::refused();
  ends.counted = Refusal::counted();
  return ends;
}

inline void check(const Ends& ends, const Want& want) {
  for (std::size_t r = 0; r < ends.of.size(); ++r) {
    const End& end = ends.of[r];
    EXPECT_FALSE(end.other) << "on rank " << r;
    EXPECT_FALSE(end.wrong) << "on rank " << r;
    if (!end.error) continue;
    const std::string text = end.error->what();
    const bool hit = want.of == Of::kThisThread && static_cast<int>(r) == want.victim;
    // A rank reads for those of its process that have the same connection, too: they are lost to each other then.
    EXPECT_TRUE(end.error->kind() == ErrorKind::kExhausted || end.error->kind() == ErrorKind::kPeerLost)
        << "rank " << r << ": " << text;
    const bool says = text.find("memory") != std::string::npos || text.find("cannot be mapped") != std::string::npos;
    EXPECT_TRUE(hit ? says : text.find("rank") != std::string::npos) << "rank " << r << ": " << text;
  }
}

// At most so many of all allocations, from the first on.
inline void sweep(const Scene& scene, Want want, long most) {
  want.n = std::numeric_limits<long>::max();
  run(scene, want);  // what is made once a process
  const Ends all = run(scene, want);
  check(all, want);
  const long stride = std::max(1L, all.counted / most);
  testing::Test::RecordProperty("allocations", static_cast<int>(all.counted));
  for (want.n = 1; !testing::Test::HasFailure(); want.n += stride) {
    SCOPED_TRACE(want.layout + ": allocation " + std::to_string(want.n) + " of rank " + std::to_string(want.victim));
    const Ends ends = run(scene, want);
    check(ends, want);
    if (ends.refused == 0) break;
  }
}

inline void sweep_all(const Scene& scene, const std::vector<std::string>& layouts, long most) {
  spare_me();
  const auto endpoint = keep_endpoint();
  for (const Of of : {Of::kThisThread, Of::kLibrarysThreads}) {
    for (const std::string& layout : layouts) {
      const int victims = of == Of::kThisThread ? static_cast<int>(layout.size()) : 1;
      for (int victim = 0; victim < victims; ++victim) {
        sweep(scene, {layout, victim, of, Which::kOne, 0}, most);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

}  // namespace tutti::test
