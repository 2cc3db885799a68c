// Groups of the same processes on several hosts share what belongs to the processes: connections, descriptors, threads.
// Ranks are processes, told apart by their host's name. Apart from tests whose ranks are threads, as
// two_levels_process_test.cc is.
#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bootstrap/exchange.h"
#include "bootstrap/store_process.h"
#include "communicator/two_levels.h"
#include "support/child_process.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

using Group = std::shared_ptr<Communicator>;

// A rank in a process of its own.
struct Rank {
  Store& store;
  const std::string layout;  // a letter a rank names its host
  const int rank;
  int barriers = 0;

  int size() const { return static_cast<int>(layout.size()); }
  Group group(const std::string& id) const {
    CommunicatorOptions options;
    options.name = id;
    options.timeout = std::chrono::seconds(40);
    options.config.log_level = "error";
    options.config.host_id = std::string(1, layout[static_cast<std::size_t>(rank)]);
    return Communicator::create(store, id, rank, size(), options);
  }
  // Through the store: no group is touched.
  void meet() {
    exchange(store, "meeting " + std::to_string(barriers++), "here", rank, size(), "", std::chrono::seconds(40));
  }
};

// Each body returns 0, or the line where it has failed.
std::vector<int> run_processes(const std::string& layout, const std::function<int(Rank&)>& body, int victim = -1) {
  StoreProcess stores;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int r = 0; r < static_cast<int>(layout.size()); ++r) {
    ranks.push_back(std::make_unique<ChildProcess>([&, r] {
      const auto store = stores.connect();
      Rank rank{*store, layout, r};
      try {
        return body(rank);
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d of %s: %s\n", r, layout.c_str(), e.what());
        return 255;
      }
    }));
  }
  std::vector<int> codes;
  for (int r = 0; r < static_cast<int>(layout.size()); ++r) {
    const int code = ranks[static_cast<std::size_t>(r)]->join();
    codes.push_back(r == victim && code == 1000 + SIGKILL ? 0 : code);
  }
  return codes;
}

#define DEMAND(condition)                                                    \
  if (!(condition)) {                                                        \
    std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
    return 1;                                                                \
  }

std::vector<std::string> names_in(const std::string& folder, bool targets) {
  std::vector<std::string> names;
  DIR* const dir = ::opendir(folder.c_str());
  while (const dirent* entry = ::readdir(dir)) {
    std::string name = entry->d_name;
    char target[128] = "";
    if (targets && ::readlink((folder + "/" + name).c_str(), target, sizeof target - 1) > 0) name = target;
    names.push_back(name);
  }
  ::closedir(dir);
  return names;
}

struct Belongings {
  std::size_t descriptors = 0, threads = 0, connections = 0;
  bool within(const Belongings& most) const {
    return descriptors <= most.descriptors && threads <= most.threads && connections <= most.connections;
  }
};

Belongings belongings() {
  Belongings result;
  const auto open = names_in("/proc/self/fd", true);
  const std::set<std::string> mine(open.begin(), open.end());
  result.descriptors = open.size();
  result.threads = names_in("/proc/self/task", false).size();
  // By number: while sockets of others come and go, a table may name one twice.
  std::set<std::string> connected;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(std::istream_iterator<std::string>(words), {});
      if (word.size() > 9 && mine.contains("socket:[" + word[9] + "]")) connected.insert(word[9]);
    }
  }
  result.connections = connected.size();
  return result;
}

// Waits for what ends by itself, a connection that has brought a group to its stream. One may have been in `before`:
// from then on it is no excuse.
bool back_to(Belongings& before) {
  Deadline deadline = Deadline::after(std::chrono::seconds(30));
  Belongings now = belongings();
  while (!now.within(before)) {
    if (deadline.expired()) {
      std::fprintf(stderr, "descriptors %zu, threads %zu, connections %zu; were %zu, %zu, %zu\n", now.descriptors,
                   now.threads, now.connections, before.descriptors, before.threads, before.connections);
      return false;
    }
    ::poll(nullptr, 0, 2);
    now = belongings();
  }
  before = now;
  return true;
}

bool sums(Communicator& c, std::size_t count = 10) {
  FloatCall made(Collective::kAllReduce, count, 1);
  std::fill(made.in.begin(), made.in.end(), static_cast<float>(c.rank() + 1));
  c.run(made.call);
  const auto sum = static_cast<float>(c.size() * (c.size() + 1) / 2);
  return std::all_of(made.out.begin(), made.out.end(), [sum](float value) { return value == sum; });
}

// All pairs talk, so that every connection there may be is made.
bool all_talk(Communicator& c) {
  const auto ranks = static_cast<std::size_t>(c.size());
  std::vector<int> in(ranks, c.rank()), out(ranks, -1);
  for (int step = 1; step < c.size(); ++step) {
    const int to = (c.rank() + step) % c.size(), from = (c.rank() - step + c.size()) % c.size();
    const auto sent = c.isend(&in[static_cast<std::size_t>(to)], 1, DataType::kInt32, to, 0, {}, nullptr);
    c.recv(&out[static_cast<std::size_t>(from)], 1, DataType::kInt32, from, 0, {});
    sent->wait();
    if (out[static_cast<std::size_t>(from)] != from) return false;
  }
  return sums(c);
}

const std::vector<int> kAllRight2(2), kAllRight3(3), kAllRight4(4);

int many_groups(Rank& me, int number) {
  const Group first = me.group("first");
  DEMAND(all_talk(*first));
  me.meet();
  Belongings before = belongings();
  DEMAND(before.connections > 0);
  for (const char* round : {"once ", "anew "}) {
    std::vector<Group> groups;
    for (int i = 0; i < number; ++i) {
      groups.push_back(me.group(round + std::to_string(i)));
      DEMAND(sums(*groups.back()));
    }
    DEMAND(back_to(before));
    // Used once more, in another order, while all are there.
    for (int i = number - 1; i >= 0; i -= 7) DEMAND(sums(*groups[static_cast<std::size_t>(i)]));
    DEMAND(back_to(before));
    me.meet();  // nobody destroys what another still uses
    number = 20;
  }
  DEMAND(back_to(before));
  DEMAND(sums(*first));
  return 0;
}

TEST(SharedStreams, AThousandGroupsTakeWhatTheFirstTook) {
  EXPECT_EQ(run_processes("ab", [](Rank& me) { return many_groups(me, kSanitized ? 100 : 1000); }), kAllRight2);
}

// Ranks that share memory besides: the bells at which they sleep are the processes' too.
TEST(SharedStreams, SoDoGroupsOfHostsOfSeveralRanks) {
  EXPECT_EQ(run_processes("aabb", [](Rank& me) { return many_groups(me, 60); }), kAllRight4);
}

// Each rank issues on many groups in an order of its own, and waits in another.
TEST(SharedStreams, CallsOfManyGroupsInterleave) {
  const auto body = [](Rank& me) {
    constexpr std::size_t kGroups = 24;
    std::vector<Group> groups;
    for (std::size_t i = 0; i < kGroups; ++i) groups.push_back(me.group("group " + std::to_string(i)));
    std::mt19937 random(static_cast<unsigned>(me.rank));
    for (int round = 0; round < 3; ++round) {
      std::vector<std::size_t> order(kGroups);
      for (std::size_t i = 0; i < kGroups; ++i) order[i] = i;
      std::ranges::shuffle(order, random);
      std::vector<std::unique_ptr<FloatCall>> calls(kGroups);
      std::vector<WorkPtr> works(kGroups);
      for (const std::size_t i : order) {
        calls[i] = std::make_unique<FloatCall>(Collective::kAllReduce, 1 + i * i * 150, 1);
        std::fill(calls[i]->in.begin(), calls[i]->in.end(), static_cast<float>(i) + static_cast<float>(me.rank));
        works[i] = groups[i]->submit(calls[i]->call, {}, nullptr);
      }
      std::ranges::shuffle(order, random);
      for (const std::size_t i : order) {
        works[i]->wait();
        const float sum = static_cast<float>(i) * 3 + 3;
        DEMAND(std::ranges::all_of(calls[i]->out, [sum](float value) { return value == sum; }));
      }
    }
    me.meet();
    return 0;
  };
  EXPECT_EQ(run_processes("abc", body), kAllRight3);
}

// Small messages up to the window and a large one, which nobody receives for now, stop no other group.
TEST(SharedStreams, AGroupThatDoesNotReceiveStopsNoOther) {
  const auto body = [](Rank& me) {
    const Group slow = me.group("slow"), other = me.group("other");
    const std::vector<float> large(6 << 20, 7), small(1500, 3);
    std::vector<float> got_large(large.size()), got_small(small.size());
    constexpr int kSmall = 1500;  // 9 MB: more than the port and the stream keep
    std::vector<WorkPtr> works;
    if (me.rank == 0) {
      works.push_back(slow->isend(large.data(), large.size(), DataType::kFloat32, 1, 1, {}, nullptr));
      for (int i = 0; i < kSmall; ++i) {
        works.push_back(slow->isend(small.data(), small.size(), DataType::kFloat32, 1, 2, {}, nullptr));
      }
    }
    for (int i = 0; i < 20; ++i) DEMAND(sums(*other, i % 2 == 0 ? 10 : 300'000));
    if (me.rank == 1) {
      for (int i = 0; i < kSmall; ++i) {
        std::fill(got_small.begin(), got_small.end(), 0);
        slow->recv(got_small.data(), got_small.size(), DataType::kFloat32, 0, 2, {});
        DEMAND(got_small == small);
      }
      slow->recv(got_large.data(), got_large.size(), DataType::kFloat32, 0, 1, {});
      DEMAND(got_large == large);
    }
    for (const WorkPtr& work : works) work->wait();
    DEMAND(sums(*slow));
    me.meet();
    return 0;
  };
  EXPECT_EQ(run_processes("ab", body), kAllRight2);
}

// An abort in the middle of a large message ends that group, on both ranks, and no other.
TEST(SharedStreams, AnAbortEndsItsGroupOnly) {
  const auto body = [](Rank& me) {
    const Group one = me.group("one"), other = me.group("other");
    DEMAND(sums(*one) && sums(*other));
    for (int round = 0; round < 10; ++round) {
      const Group aborted = me.group("aborted " + std::to_string(round));
      std::vector<float> data(1 << 20, 1);
      DEMAND(sums(*aborted));
      if (me.rank == 0) {
        const auto sent = aborted->isend(data.data(), data.size(), DataType::kFloat32, 1, 1, {}, nullptr);
        DEMAND(sums(*one));
        aborted->abort("enough");
        error_of([&] { sent->wait(); });
      } else {
        WorkPtr received = aborted->irecv(data.data(), data.size(), DataType::kFloat32, 0, 1, {}, nullptr);
        DEMAND(sums(*one));
        const Error error = error_of([&] {
          received->wait();
          sums(*aborted);
        });
        // Why is said where there is room for it: not behind a message that nobody has taken.
        const std::string text = error.what();
        if (text.find("rank 0") == std::string::npos || text.find("timed out") != std::string::npos) {
          std::fprintf(stderr, "%s\n", text.c_str());
          return 1;
        }
      }
      DEMAND(sums(*other, 100'000) && sums(*one));
    }
    me.meet();
    return 0;
  };
  EXPECT_EQ(run_processes("ab", body), kAllRight2);
}

// All groups learn of a dead process, those that wait and those that come to call later.
TEST(SharedStreams, ADeadProcessEndsAllItsGroups) {
  constexpr int kVictim = 2;
  const auto body = [](Rank& me) {
    std::vector<Group> groups;
    for (int i = 0; i < 8; ++i) {
      groups.push_back(me.group("group " + std::to_string(i)));
      DEMAND(all_talk(*groups.back()));
    }
    me.meet();
    if (me.rank == kVictim) ::raise(SIGKILL);
    std::vector<float> data(8 * 10);
    std::vector<WorkPtr> works;
    for (std::size_t i = 0; i < 4; ++i) {
      works.push_back(groups[i]->irecv(&data[i * 10], 10, DataType::kFloat32, kVictim, 1, {}, nullptr));
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Error error = error_of([&] { i < works.size() ? works[i]->wait() : void(sums(*groups[i])); });
      const std::string text = error.what();
      DEMAND(text.find("rank 2") != std::string::npos || text.find("gave up") != std::string::npos ||
             text.find("has left") != std::string::npos);
      DEMAND(text.find("timed out") == std::string::npos);
    }
    return 0;
  };
  EXPECT_EQ(run_processes("abc", body, kVictim), kAllRight3);
}

}  // namespace
}  // namespace tutti::test
