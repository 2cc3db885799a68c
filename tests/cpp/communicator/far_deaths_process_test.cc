// Ranks of other hosts that die, or end in good order, while a rank waits for others. Apart from tests whose ranks are
// threads, as two_levels_process_test.cc is.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bootstrap/exchange.h"
#include "bootstrap/store_process.h"
#include "communicator/group_bootstrap.h"
#include "communicator/plan_calls.h"
#include "communicator/two_levels.h"
#include "executor/host_plans.h"
#include "support/child_process.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// More than the watchdog of child_process.h allows: a rank that waits for it fails the test.
constexpr milliseconds kTimeout(120'000);

using Body = std::function<bool(std::shared_ptr<Communicator>)>;

// A process a rank of `layout`, a letter a host. Where all have called one another and ended that call, `body` follows,
// which is false, or raises, if something is wrong.
void run_processes(const std::string& layout, const Body& body, const std::string& plan_path = "") {
  StoreProcess stores;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int r = 0; r < static_cast<int>(layout.size()); ++r) {
    ranks.push_back(std::make_unique<ChildProcess>([&, r] {
      try {
        const auto store = stores.connect();
        CommunicatorOptions options;
        options.timeout = kTimeout;
        options.config.log_level = "error";
        options.config.plan_path = plan_path;
        options.config.host_id = std::string(1, layout[static_cast<std::size_t>(r)]);
        auto c = Communicator::create(*store, "test", r, static_cast<int>(layout.size()), options);
        FloatCall made(Collective::kAllReduce, 100, 1);
        c->run(made.call);
        exchange(*store, "test", "ready", r, c->size(), "", kTimeout);
        return body(std::move(c)) ? 0 : 1;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "layout %s, rank %d: %s\n", layout.c_str(), r, e.what());
        return 2;
      }
    }));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(ranks[r]->join(), 0) << layout << ", rank " << r;
}

[[noreturn]] void die() { ::_exit(0); }

bool says(const Error& error, ErrorKind kind, const std::string& text) {
  const bool does = error.kind() == kind && std::string(error.what()).find(text) != std::string::npos;
  if (!does) std::fprintf(stderr, "not '%s': %s\n", text.c_str(), error.what());
  return does;
}

// The last rank, which leads another host, dies. Rank 1 makes no call until rank 0's has failed, as one may that knows
// of the death from elsewhere: so rank 0 must find it itself.
void expect_told(const std::string& layout, const std::function<void(Communicator&)>& wait_for_rank_1) {
  const int dead = static_cast<int>(layout.size()) - 1;
  Gate told;
  run_processes(layout, [&](const std::shared_ptr<Communicator>& c) {
    if (c->rank() == dead) die();
    if (c->rank() != 0) return c->rank() == 1 ? told.wait() : true;
    const Error error = error_of([&] { wait_for_rank_1(*c); });
    told.open();
    return says(error, ErrorKind::kPeerLost, "rank " + std::to_string(dead) + " died or cannot be reached any more");
  });
}

TEST(FarDeaths, EndAWaitInSharedMemory) {
  for (const std::size_t count : {10UL, 300'000UL}) {
    expect_told("aab", [&](Communicator& c) {
      FloatCall made(Collective::kAllReduce, count, 1);
      c.run(made.call);
    });
  }
}

TEST(FarDeaths, EndAWaitForAMessage) {
  float x = 0;
  for (const char* layout : {"aab", "abc"}) {
    expect_told(layout, [&](Communicator& c) { c.recv(&x, 1, DataType::kFloat32, 1, 7); });
    expect_told(layout, [&](Communicator& c) { c.recv(&x, 1, DataType::kFloat32, kAnySource, 7); });
    expect_told(layout, [&](Communicator& c) { c.irecv(&x, 1, DataType::kFloat32, 1, 7, {}, nullptr)->wait(); });
  }
}

// Nobody waits for the message: the group's thread does.
TEST(FarDeaths, EndAMessageThatNobodyWaitsFor) {
  float x = 0;
  expect_told("aab", [&](Communicator& c) {
    std::promise<void> over;
    const WorkPtr work = c.irecv(&x, 1, DataType::kFloat32, 1, 7, {}, nullptr);
    work->on_done([&](Work&) { over.set_value(); });
    over.get_future().wait();
    std::rethrow_exception(work->error());
  });
}

// The same of one that lives and has given up, and why.
void expect_told_of_abort(const std::string& layout, const std::function<void(Communicator&)>& wait_for_rank_1) {
  Gate told;
  run_processes(layout, [&](const std::shared_ptr<Communicator>& c) {
    if (c->rank() == 2) c->abort("no more data");
    if (c->rank() != 0) return told.wait();
    const Error error = error_of([&] { wait_for_rank_1(*c); });
    for (int other = 1; other < c->size(); ++other) told.open();
    return says(error, ErrorKind::kPeerLost, "rank 2 gave up: it aborted the group: no more data");
  });
}

TEST(FarDeaths, OfWhoGivesUpAreToldToo) {
  expect_told_of_abort("aab", [](Communicator& c) {
    FloatCall made(Collective::kAllReduce, 10, 1);
    c.run(made.call);
  });
  for (const char* layout : {"aab", "abc"}) {
    expect_told_of_abort(layout, [](Communicator& c) {
      float x = 0;
      c.recv(&x, 1, DataType::kFloat32, 1, 7);
    });
  }
}

// A rank of a plan that waits in shared memory asks a peer of which it has heard why it failed: not itself.
TEST(FarDeaths, EndAPlan) {
  PlanFolder folder;
  const std::string file = folder.add("ring", plan::hosts_ring_all_reduce({4, 3}));
  Gate told;
  run_processes(
      "aaab",
      [&](const std::shared_ptr<Communicator>& c) {
        FloatCall made(Collective::kAllReduce, 100, 1);  // rank 2 sends to rank 3 what it has from rank 1
        if (c->rank() == 3) {                            // in the midst of the call
          std::thread([] {
            std::this_thread::sleep_for(milliseconds(300));
            die();
          }).detach();
          c->run(made.call);
        }
        if (c->rank() != 2) return told.wait();
        const Error error = error_of([&] { c->run(made.call); });
        for (int other = 0; other < 2; ++other) told.open();
        return calls_by(*c, Collective::kAllReduce, "plan:ring") != 0 &&
               says(error, ErrorKind::kPeerLost, "rank 3 died or cannot be reached any more");
      },
      file);
}

// A process that ends in good order, with its group or without having given it up, is no loss to those that need it no
// more; who does need it hears that it has left.
TEST(FarDeaths, RanksThatLeaveAreNone) {
  for (const bool gives_up : {true, false}) {
    run_processes("abc", [&](std::shared_ptr<Communicator> c) {
      float x = 1;
      if (c->rank() == 2 && gives_up) c.reset();
      if (c == nullptr) return true;
      if (c->rank() == 2) std::exit(0);
      // The first message shows that the end has been seen, the second that it did no harm.
      const Error error = error_of([&] { c->recv(&x, 1, DataType::kFloat32, 2, 7); });
      return says(error, ErrorKind::kPeerLost, "rank 2 has left the group");
    });
    run_processes("abc", [&](std::shared_ptr<Communicator> c) {
      float x = 1;
      if (c->rank() == 2 && gives_up) c.reset();
      if (c == nullptr) return true;
      if (c->rank() == 2) std::exit(0);
      if (c->rank() == 0) return c->recv(&x, 1, DataType::kFloat32, 1, 7) == 1;
      std::this_thread::sleep_for(milliseconds(700));  // several looks of rank 0's
      c->send(&x, 1, DataType::kFloat32, 0, 7);
      return true;
    });
  }
}

// The thread of this process's connections, by the poll() below, which it calls with no lock held.
class NetworkThread {
 public:
  // It stands still until let_go(), whatever it is woken for.
  static void hold() {
    held_ = true;
    while (!polls_) std::this_thread::sleep_for(milliseconds(1));
  }
  static void let_go() { held_ = false; }
  static int poll(pollfd* fds, nfds_t count, int timeout) {
    static const auto next = reinterpret_cast<int (*)(pollfd*, nfds_t, int)>(::dlsym(RTLD_NEXT, "poll"));
    if (::gettid() == ::getpid()) return next(fds, count, timeout);
    polls_ = true;
    const int ready = next(fds, count, timeout);
    while (held_) std::this_thread::sleep_for(milliseconds(1));
    polls_ = false;
    return ready;
  }

 private:
  static inline std::atomic<bool> held_ = false, polls_ = false;
};

// Its words are on their way when the process has ended, whether or not another thread has come to send them.
TEST(FarDeaths, WhoAbortsAndEndsAtOnceHasAborted) {
  for (const char* layout : {"aab", "abc"}) {
    run_processes(layout, [&](const std::shared_ptr<Communicator>& c) {
      float x = 0;
      if (c->rank() == 2) {
        for (const int peer : {0, 1}) c->recv(&x, 1, DataType::kFloat32, peer, 1);  // then all links stand
        NetworkThread::hold();
        c->abort("no more data");
        std::exit(0);
      }
      c->send(&x, 1, DataType::kFloat32, 2, 1);
      const Error error = error_of([&] { c->recv(&x, 1, DataType::kFloat32, 2, 7); });
      return says(error, ErrorKind::kPeerLost, "rank 2 gave up: it aborted the group: no more data");
    });
  }
}

// Rank 2, the first of its host, watches rank 1 in the call, but comes to connect to it only when that is through and
// has ended, while rank 2 still waits for rank 5.
TEST(FarDeaths, WhoIsThroughBeforeItIsWatchedHasNotDied) {
  run_processes("aabbcd", [](const std::shared_ptr<Communicator>& c) {
    const auto part = split_group(*c, 0, c->rank(), "part");
    float x = 0;  // but these two, all that exchange messages in the barrier are connected
    for (const auto& [a, b] : {std::pair{0, 2}, {2, 4}, {4, 5}, {5, 0}, {0, 4}}) {
      if (c->rank() != a && c->rank() != b) continue;
      const int peer = c->rank() == a ? b : a;
      part->send(&x, 1, DataType::kFloat32, peer, 1);
      part->recv(&x, 1, DataType::kFloat32, peer, 1);
    }
    std::thread later;
    if (c->rank() == 2 || c->rank() == 5) {
      NetworkThread::hold();
      later = std::thread([after = milliseconds(c->rank() == 2 ? 500 : 1000)] {
        std::this_thread::sleep_for(after);
        NetworkThread::let_go();
      });
    }
    std::string said;
    try {
      part->run(Call{});
    } catch (const std::exception& e) {
      said = e.what();
    }
    if (later.joinable()) later.join();
    if (!said.empty()) std::fprintf(stderr, "rank %d: %s\n", c->rank(), said.c_str());
    return said.empty();
  });
}

// What the calls of devices among ranks of one host ask: of a death there, and of none that ends in good order.
TEST(FarDeaths, OfOneHostAreKnownToWhoMakesNoCall) {
  for (const std::string layout : {"aaa", "aba", "baa"}) {
    const int asks = static_cast<int>(layout.find(layout[2]));
    for (const bool dies : {true, false}) {
      run_processes(layout, [&](const std::shared_ptr<Communicator>& c) {
        if (c->rank() == 2 && dies) die();
        if (c->rank() != asks) return true;
        const GroupBootstraps group(*c);
        std::optional<Error> lost;
        Deadline soon = Deadline::after(milliseconds(dies ? 20'000 : 300));
        while (!lost && !soon.expired()) {
          std::this_thread::sleep_for(milliseconds(1));
          lost = group.lost();
        }
        if (!dies) return !lost;
        return lost && says(*lost, ErrorKind::kPeerLost, "on rank " + std::to_string(asks) + ": rank 2 (pid ") &&
               says(*lost, ErrorKind::kPeerLost, "died or cannot be reached any more");
      });
    }
  }
}

// Rank 2 dies; rank 1 hears of it in one group, and makes no call of the other. `in_part`: in a part of the two, else
// in the whole.
void expect_kin_told(const std::string& layout, bool in_part) {
  Gate told;
  run_processes(layout, [&](const std::shared_ptr<Communicator>& c) {
    const auto part = split_group(*c, c->rank() == 0 ? 0 : 1, 0, "part");
    const auto others = split_group(*c, c->rank() == 2 ? 0 : 1, 0, "others");
    float x = 0;  // first a message that says that all parts have formed
    if (c->rank() == 2) {
      for (const int peer : {0, 1}) c->recv(&x, 1, DataType::kFloat32, peer, 1);
      die();
    }
    c->send(&x, 1, DataType::kFloat32, 2, 1);
    bool right = true;
    if (c->rank() == 0) {
      if (in_part) {
        right = says(error_of([&] { c->recv(&x, 1, DataType::kFloat32, 1, 7); }), ErrorKind::kPeerLost, "rank 2");
      }
      told.open();
    } else {
      Communicator& hears = in_part ? *part : *c;
      const int there = in_part ? 1 : 2;
      right = says(error_of([&] { hears.recv(&x, 1, DataType::kFloat32, there, 7); }), ErrorKind::kPeerLost,
                   "rank " + std::to_string(there) + " ");
      const std::optional<Error> other = (in_part ? *c : *part).failure();
      right = right && other.has_value() &&
              says(*other, ErrorKind::kPeerLost,
                   in_part ? "group 'tutti' on rank 1: as group 'part' has found, rank 2 "
                           : "group 'part' on rank 0: as group 'tutti' has found, rank 1 ");
      right = told.wait() && right;
    }
    // Groups without the dead rank go on.
    FloatCall made(Collective::kAllReduce, 100, 1);
    others->run(made.call);
    return right && !others->failure();
  });
}

TEST(FarDeaths, InAPartEndTheWhole) {
  for (const char* layout : {"abc", "aab", "aaa"}) expect_kin_told(layout, true);
}

TEST(FarDeaths, InTheWholeEndItsParts) {
  for (const char* layout : {"abc", "aab", "aaa"}) expect_kin_told(layout, false);
}

// Rank 2 has left the whole in good order when it dies: the others, who hear of its death in another part, go on there.
TEST(FarDeaths, AfterALeaveHarmNoGroup) {
  for (const char* layout : {"abc", "aab", "aaa"}) {
    run_processes(layout, [](std::shared_ptr<Communicator> c) {
      const int rank = c->rank();
      const auto part = split_group(*c, rank == 0 ? 0 : 1, 0, "part");
      float x = 0;
      if (rank == 2) {
        for (const int peer : {0, 1}) c->recv(&x, 1, DataType::kFloat32, peer, 1);
        c.reset();
        part->send(&x, 1, DataType::kFloat32, 0, 1);  // not before rank 1 can know that
        part->recv(&x, 1, DataType::kFloat32, 0, 1);
        die();
      }
      c->send(&x, 1, DataType::kFloat32, 2, 1);
      if (rank == 1) {
        part->recv(&x, 1, DataType::kFloat32, 1, 1);
        part->send(&x, 1, DataType::kFloat32, 1, 1);
        if (!says(error_of([&] { part->recv(&x, 1, DataType::kFloat32, 1, 1); }), ErrorKind::kPeerLost,
                  "died or cannot be reached")) {
          return false;
        }
        c->send(&x, 1, DataType::kFloat32, 0, 1);
      } else {
        c->recv(&x, 1, DataType::kFloat32, 1, 1);
      }
      return !c->failure();
    });
  }
}

}  // namespace
}  // namespace tutti::test

// NOLINTBEGIN: the C library's interface
extern "C" __attribute__((visibility("default"))) int poll(pollfd* fds, nfds_t count, int timeout) {
  return tutti::test::NetworkThread::poll(fds, count, timeout);
}
// NOLINTEND
