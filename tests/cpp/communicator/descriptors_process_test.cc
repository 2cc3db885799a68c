// Ranks that run out of descriptors, at any number left: while a group forms, and while its ranks connect. Apart from
// tests whose ranks are threads, as two_levels_process_test.cc is.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/exchange.h"
#include "bootstrap/store_process.h"
#include "communicator/two_levels.h"
#include "support/child_process.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

constexpr int kRanks = 3;

// The checks of objects' types open a pipe; where they cannot, they take any object for a wrong one.
constexpr bool kChecksNeedDescriptors = kAddressSanitizer;

// kBlamesARank: what a rank raises whose peer has given up before, for want of a connection to a third.
enum Ending { kWorks = 0, kNamesTheLimit = 1, kBlamesARank = 2, kAnotherError = 3, kWrongResult = 4 };

// Leaves this process so many descriptors.
void leave(int descriptors) {
  const int lowest_free = ::dup(0);
  ::close(lowest_free);
  const auto bound = static_cast<rlim_t>(lowest_free + descriptors);
  const rlimit few{bound, bound};
  ::setrlimit(RLIMIT_NOFILE, &few);
}

// All ranks send to all and receive from all, so that every connection there may be is made, and reduce.
bool all_talk(Communicator& c) {
  std::vector<float> in(kRanks, static_cast<float>(c.rank()));
  std::vector<float> out(kRanks, -1);
  std::vector<WorkPtr> works;
  for (int peer = 0; peer < c.size(); ++peer) {
    if (peer == c.rank()) continue;
    const auto at = static_cast<std::size_t>(peer);
    works.push_back(c.isend(&in[at], 1, DataType::kFloat32, peer, 0, {}, nullptr));
    works.push_back(c.irecv(&out[at], 1, DataType::kFloat32, peer, 0, {}, nullptr));
  }
  for (const WorkPtr& work : works) work->wait();
  for (int peer = 0; peer < c.size(); ++peer) {
    if (peer != c.rank() && out[static_cast<std::size_t>(peer)] != static_cast<float>(peer)) return false;
  }
  FloatCall made(Collective::kAllReduce, 10'000, 1);
  std::fill(made.in.begin(), made.in.end(), static_cast<float>(c.rank() + 1));
  c.run(made.call);
  return std::all_of(made.out.begin(), made.out.end(), [](float value) { return value == 6; });
}

// When a rank runs out: before its group of one host forms, or, in a group of several hosts, before it connects.
enum class When { kForming, kConnecting };

// A rank of a group of three; `left`: the descriptors that it has, -1: as many as it likes.
// A rank that fails keeps its group until all are through, so that the others learn nothing from its end.
Ending run_rank(StoreProcess& stores, const std::string& id, int rank, int left, When when) {
  const auto store = stores.connect();
  std::shared_ptr<Communicator> group;
  Ending ending = kAnotherError;
  try {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(30);
    options.config.log_level = "error";
    if (when == When::kConnecting) options.config.host_id = "host " + std::to_string(rank);
    if (when == When::kForming && left >= 0) leave(left);
    group = Communicator::create(*store, id, rank, kRanks, options);
    if (when == When::kConnecting && left >= 0) leave(left);
    ending = all_talk(*group) ? kWorks : kWrongResult;
  } catch (const std::exception& e) {
    const std::string text = e.what();
    if (text.find("died or cannot be reached any more") != std::string::npos) ending = kBlamesARank;
    if (text.find("ulimit -n") != std::string::npos) ending = kNamesTheLimit;
    if (ending == kAnotherError) std::fprintf(stderr, "group %s, rank %d: %s\n", id.c_str(), rank, e.what());
  }
  exchange(*store, id, "through", rank, kRanks, "", std::chrono::seconds(30));
  return ending;
}

struct Trial {
  int poor;  // the rank with few descriptors
  int left;
  When when;
  std::vector<std::unique_ptr<ChildProcess>> ranks{};
};

// All at once: those that run into a limit wait most of the time.
std::vector<std::vector<int>> endings(std::vector<Trial>& trials) {
  StoreProcess stores;
  for (Trial& t : trials) {
    const std::string id = std::to_string(t.poor) + " with " + std::to_string(t.left);
    for (int r = 0; r < kRanks; ++r) {
      t.ranks.push_back(
          std::make_unique<ChildProcess>([&] { return run_rank(stores, id, r, r == t.poor ? t.left : -1, t.when); }));
    }
  }
  std::vector<std::vector<int>> all;
  for (Trial& t : trials) {
    std::vector<int>& codes = all.emplace_back();
    for (const auto& rank : t.ranks) codes.push_back(rank->join());
  }
  return all;
}

// All work, or the rank with few descriptors raises an error that names the limit, and so does whoever misses it; a
// rank that learns of it from a third may blame that one.
void expect_honest(const std::vector<int>& codes, const Trial& trial) {
  const int poor = codes[static_cast<std::size_t>(trial.poor)];
  EXPECT_LE(poor, kNamesTheLimit);
  for (const int code : codes) {
    EXPECT_LE(code, kBlamesARank);
    EXPECT_EQ(code == kWorks, poor == kWorks);
  }
}

// Rank 0 leads its host, rank 2 is led.
TEST(Descriptors, AGroupFormsOrAllRanksLearnOfTheLimit) {
  if (kChecksNeedDescriptors) GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors of its own";
  std::vector<Trial> trials;
  for (const int poor : {0, 2}) {
    for (const int left : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 24})
      trials.push_back({poor, left, When::kForming});
  }
  const auto all = endings(trials);
  for (std::size_t i = 0; i < trials.size(); ++i) {
    SCOPED_TRACE("rank " + std::to_string(trials[i].poor) + " has " + std::to_string(trials[i].left));
    expect_honest(all[i], trials[i]);
    if (trials[i].left == 0) {  // before any connection
      EXPECT_EQ(all[i], std::vector<int>(kRanks, kNamesTheLimit));
    }
    if (trials[i].left == 24) {
      EXPECT_EQ(all[i], std::vector<int>(kRanks, kWorks));
    }
  }
}

TEST(Descriptors, AConnectionIsMadeOrBothRanksLearnOfTheLimit) {
  if (kChecksNeedDescriptors) GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors of its own";
  std::vector<Trial> trials;
  for (int poor = 0; poor < kRanks; ++poor) {
    for (const int left : {0, 1, 2, 16}) trials.push_back({poor, left, When::kConnecting});
  }
  const auto all = endings(trials);
  int named = 0;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    SCOPED_TRACE("rank " + std::to_string(trials[i].poor) + " has " + std::to_string(trials[i].left));
    expect_honest(all[i], trials[i]);
    // With none left a connection may still find one that the group has just given back.
    named += static_cast<int>(std::count(all[i].begin(), all[i].end(), kNamesTheLimit));
    if (trials[i].left == 16) {
      EXPECT_EQ(all[i], std::vector<int>(kRanks, kWorks));
    }
  }
  EXPECT_GT(named, 0) << "no rank ran out";
}

// Rank 1, on another host, gives rank 0 up, and rank 2 hears of that, while rank 0 waits for rank 2: in shared memory,
// or on a link that stands. `layout`: a letter a host.
int run_given_up(StoreProcess& stores, const std::string& layout, int rank) {
  const auto store = stores.connect();
  const auto all_here = [&](const char* when) {
    exchange(*store, layout, when, rank, kRanks, "", std::chrono::seconds(30));
  };
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(30);
  options.config.log_level = "error";
  options.config.host_id = std::string(1, layout[static_cast<std::size_t>(rank)]);
  const auto group = Communicator::create(*store, layout, rank, kRanks, options);
  float value = 1;
  const auto send = [&](int to) { return group->isend(&value, 1, DataType::kFloat32, to, 0, {}, nullptr); };
  const auto receive = [&](int from) { return group->irecv(&value, 1, DataType::kFloat32, from, 0, {}, nullptr); };
  if (rank != 2) send(2)->wait();
  for (int other = 0; rank == 2 && other < 2; ++other) receive(other)->wait();
  if (rank == 0) leave(0);
  all_here("connected");
  while (rank == 0 && ::dup(0) >= 0) {  // what has been given back in the meantime
  }
  all_here("without descriptors");
  std::string text = "no error";
  try {
    if (rank != 1) receive(2 - rank)->wait();
    if (rank == 1) send(0)->wait();
  } catch (const std::exception& e) {
    text = e.what();
  }
  all_here("through");
  const bool told = rank != 0 || text.find("gave up: it lost rank 0") != std::string::npos;
  if (told && text.find("ulimit -n") != std::string::npos) return kNamesTheLimit;
  if (rank == 2 && text.find("rank 0") != std::string::npos) return kBlamesARank;
  std::fprintf(stderr, "rank %d: %s\n", rank, text.c_str());
  return kAnotherError;
}

TEST(Descriptors, ARankThatIsGivenUpForItsLimitNamesIt) {
  if (kChecksNeedDescriptors) GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors of its own";
  StoreProcess stores;
  for (const char* layout : {"aba", "abc"}) {
    std::vector<std::unique_ptr<ChildProcess>> ranks;
    for (int r = 0; r < kRanks; ++r) {
      ranks.push_back(std::make_unique<ChildProcess>([&, r] { return run_given_up(stores, layout, r); }));
    }
    EXPECT_EQ(ranks[0]->join(), kNamesTheLimit) << layout;
    EXPECT_EQ(ranks[1]->join(), kNamesTheLimit) << layout;
    EXPECT_LE(ranks[2]->join(), kBlamesARank) << layout;
  }
}

// A process of many groups watches each peer process once.
TEST(Descriptors, MoreGroupsTakeNoMore) {
  StoreProcess stores;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(std::make_unique<ChildProcess>([&stores, r] {
      const auto store = stores.connect();
      std::vector<std::shared_ptr<Communicator>> groups;
      std::vector<int> descriptors;
      for (const char* id : {"a", "b", "c", "d"}) {
        groups.push_back(Communicator::create(*store, id, r, kRanks, {}));
        if (!all_talk(*groups.back())) return 1;
        descriptors.push_back(open_descriptors());
      }
      return descriptors.front() == descriptors.back() ? 0 : 2;
    }));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->join(), 0);
}

// The limit that many systems give, and no rank may raise: kept where each group holds no descriptor of a peer.
TEST(Descriptors, SixtyFourRanksOfSixteenGroupsStayBelowAThousand) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer makes 64 processes too many";
  constexpr int kMany = 64, kGroups = 16;
  StoreProcess stores;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int r = 0; r < kMany; ++r) {
    ranks.push_back(std::make_unique<ChildProcess>([&stores, r] {
      const rlimit limit{1024, 1024};
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const auto store = stores.connect();
      CommunicatorOptions options;
      options.config.log_level = "error";
      options.config.stage_bytes = 64 << 10;  // sixteen areas of each of 64 ranks
      std::vector<std::shared_ptr<Communicator>> groups;
      try {
        for (int g = 0; g < kGroups; ++g) {
          groups.push_back(Communicator::create(*store, std::to_string(g), r, kMany, options));
          FloatCall made(Collective::kAllReduce, 1, 1);
          made.in[0] = static_cast<float>(r);
          groups.back()->run(made.call);
          if (made.out[0] != kMany * (kMany - 1) / 2) return 1;
        }
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d, group %zu: %s\n", r, groups.size(), e.what());
        return 2;
      }
      const int open = open_descriptors();
      exchange(*store, "all", "through", r, kMany, "", std::chrono::seconds(30));
      if (r == 0) std::printf("a rank holds %d descriptors\n", open);
      std::fflush(stdout);
      return open < 1024 ? 0 : 3;
    }));
  }
  for (int r = 0; r < kMany; ++r) EXPECT_EQ(ranks[static_cast<std::size_t>(r)]->join(), 0) << "rank " << r;
}

TEST(Descriptors, TheSoftLimitIsRaisedByTheFirstGroupOnly) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max <= 64) GTEST_SKIP() << "the hard limit is " << limit.rlim_max;
  const rlim_t most = std::min<rlim_t>(limit.rlim_max, 1 << 20);
  const int code = run_in_child([&] {
    StoreProcess stores;
    const auto soft = [&] {
      ::getrlimit(RLIMIT_NOFILE, &limit);
      return limit.rlim_cur;
    };
    const auto group_with = [&](const char* id, rlim_t before) {
      const rlimit few{before, limit.rlim_max};
      ::setrlimit(RLIMIT_NOFILE, &few);
      Communicator::create(*stores.connect_here(), id, 0, 1, {});
      return soft();
    };
    if (group_with("first", 64) != most) return 1;
    return group_with("second", 64) == 64 ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace tutti::test
