// A process that is killed after its first, second, ... message while its group forms, is split or shrinks: each time
// the others hear at once that it died. What is between two messages of a rank nobody sees but in shared memory, which
// forming_deaths_test.cc tries at random moments.
#include <algorithm>

#include "communicator/counted_steps.h"
#include "communicator/forming_deaths.h"
#include "communicator/group_bootstrap.h"
#include "communicator/subgroup.h"
#include "support/sanitized.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

using Group = std::shared_ptr<Communicator>;

struct Rank {
  Store& store;
  const std::string& layout;
  int rank, victim;

  int size() const { return static_cast<int>(layout.size()); }
  Group create() const { return Communicator::create(store, kName, rank, size(), options_of(layout, rank)); }
  // Made by one that stays.
  GroupId group_id() const {
    GroupId id;
    if (rank == (victim + 1) % size()) {
      id = make_group_id(Config{}, "localhost");
      store.set("id", std::string_view(id.data(), id.size()));
    } else {
      const std::string text = store.get("id", std::chrono::seconds(30));
      std::copy_n(text.begin(), id.size(), id.begin());
    }
    return id;
  }
};

// `prepare(rank)`, and then with what it gives `form(rank, prepared)`, where the victim dies after each number of steps
// in turn, up to where it has formed and made a call; under sanitizers, of every third number.
template <class Prepare, class Form>
void kill_at_every_step(const std::string& layout, int victim, const Prepare& prepare, const Form& form,
                        int first = 1) {
  constexpr int kAtOnce = 4;
  bool died = true;
  for (int steps = first; died;) {
    Worlds worlds;
    for (int i = 0; i < kAtOnce; ++i, steps += kSanitized ? 3 : 1) {
      const std::string what = layout + ": rank " + std::to_string(victim) + " dies after " + std::to_string(steps);
      worlds.start(layout, what, [&](Store& store, int r) {
        const Rank rank{store, layout, r, victim};
        const auto prepared = prepare(rank);
        if (r != victim) return lost({store, layout, r, victim}, [&] { return form(rank, prepared); });
        die_after(steps);
        const Group group = form(rank, prepared);
        group->run(Call{});
        die_after(-1);
        return int{kFormed};  // it leaves
      });
    }
    worlds.end([&](Worlds::World& world) {
      expect_told(world.ranks, victim, world.what);
      died = victim_died(world.ranks, victim, world.what) && died;
    });
    if (testing::Test::HasFailure()) return;
  }
}

// Whoever is alone on its host when it dies is missed at the deadline: until ranks connect only a store has met it.
TEST(FormingSteps, OfAGroupFromAStore) {
  for (const std::string layout : {"aa", "aab"}) {
    for (int victim = 0; victim < 2; ++victim) {
      kill_at_every_step(
          layout, victim, [](const Rank&) { return 0; }, [](const Rank& rank, int) { return rank.create(); });
      if (HasFailure()) return;
    }
  }
}

// What shows a rank to the place where all meet, challenge, proof, welcome, and its name: one that dies earlier never
// came.
constexpr int kKnown = 4;

TEST(FormingSteps, OfAGroupFromAnId) {
  for (const std::string layout : {"aa", "aab"}) {
    for (int victim = 0; victim < static_cast<int>(layout.size()); ++victim) {
      kill_at_every_step(
          layout, victim, [](const Rank& rank) { return rank.group_id(); },
          [](const Rank& rank, const GroupId& id) {
            return join_group(id, rank.rank, rank.size(), options_of(rank.layout, rank.rank));
          },
          kKnown);
      if (HasFailure()) return;
    }
  }
}

TEST(FormingSteps, OfASplit) {
  for (const std::string layout : {"aa", "aab"}) {
    for (int victim = 0; victim < static_cast<int>(layout.size()); ++victim) {
      kill_at_every_step(
          layout, victim, [](const Rank& rank) { return rank.create(); },
          [](const Rank& rank, const Group& parent) { return split_group(*parent, 0, rank.rank, "part"); });
      if (HasFailure()) return;
    }
  }
}

TEST(FormingSteps, OfASubgroup) {
  for (const std::string layout : {"aa", "aab"}) {
    for (int victim = 0; victim < static_cast<int>(layout.size()); ++victim) {
      kill_at_every_step(
          layout, victim, [](const Rank& rank) { return rank.create(); },
          [](const Rank& rank, const Group& parent) {
            return form_in(*parent, all_ranks(rank.size()), "part", [&] { return parent->options(); });
          });
      if (HasFailure()) return;
    }
  }
}

// The survivors are a group of their own, or are told who died.
TEST(FormingSteps, OfAShrink) {
  for (const std::string layout : {"aaa", "aab"}) {
    for (int victim = 0; victim < 3; ++victim) {
      // Alone on its host it is given up in time where it has not signed in.
      const bool alone = layout[static_cast<std::size_t>(victim)] == 'b';
      const std::chrono::milliseconds patience(alone ? 3'000 : 0);
      kill_at_every_step(
          layout, victim, [](const Rank& rank) { return rank.create(); },
          [&](const Rank& rank, const Group& parent) {
            std::vector<int> members;
            Group smaller = parent->shrink(rank.store, "smaller", patience, &members);
            if (static_cast<int>(members.size()) == rank.size()) return smaller;
            smaller->run(Call{});
            throw_error(ErrorKind::kPeerLost, "rank " + std::to_string(rank.victim) + " is left out");
          });
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace tutti::test
