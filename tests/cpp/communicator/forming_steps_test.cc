// A process that is killed after its first, second, ... message while its group forms, is split or shrinks: each time
// the others hear at once that it died. What is between two messages of a rank nobody sees but in shared memory, which
// forming_deaths_test.cc tries at random moments.
//
// A message is what a call of the C library sends or takes, or a connection that it makes or accepts: this program's
// come before the C library's own, and kill it by themselves.
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "communicator/forming_deaths.h"
#include "communicator/group_bootstrap.h"
#include "communicator/subgroup.h"
#include "support/sanitized.h"
#include "tutti/group_id.h"

namespace {

std::atomic<int> steps_left{-1};  // of the process that is to die; below 0 of all others

// relaxed: one thread of this process is the one that counts to 0
void step_done(long result) {
  if (result < 0 || steps_left.load(std::memory_order_relaxed) < 0) return;
  if (steps_left.fetch_sub(1, std::memory_order_relaxed) == 1) ::raise(SIGKILL);
}

template <class Call>
Call next_of(const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define TUTTI_COUNT_STEPS(result_type, name, parameters, arguments)               \
  extern "C" __attribute__((visibility("default"))) result_type name parameters { \
    static const auto next = next_of<result_type(*) parameters>(#name);           \
    const result_type result = next arguments;                                    \
    const int error = errno;                                                      \
    step_done(static_cast<long>(result));                                         \
    errno = error;                                                                \
    return result;                                                                \
  }

// NOLINTBEGIN: the C library's interface
TUTTI_COUNT_STEPS(int, connect, (int fd, const sockaddr* address, socklen_t length), (fd, address, length))
TUTTI_COUNT_STEPS(int, accept4, (int fd, sockaddr* address, socklen_t* length, int flags), (fd, address, length, flags))
TUTTI_COUNT_STEPS(ssize_t, send, (int fd, const void* data, size_t bytes, int flags), (fd, data, bytes, flags))
TUTTI_COUNT_STEPS(ssize_t, recv, (int fd, void* data, size_t bytes, int flags), (fd, data, bytes, flags))
TUTTI_COUNT_STEPS(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
TUTTI_COUNT_STEPS(ssize_t, recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
// NOLINTEND

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
        steps_left.store(steps, std::memory_order_relaxed);
        const Group group = form(rank, prepared);
        group->run(Call{});
        steps_left.store(-1, std::memory_order_relaxed);
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
