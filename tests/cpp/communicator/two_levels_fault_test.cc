// What goes wrong on one host or between two ends the call of every rank, those included that wait on their own host.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "communicator/two_levels.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// What the ranks have raised.
class Raised {
 public:
  void add(int rank, const Error& error) {
    const std::lock_guard lock(mutex_);
    kinds_.push_back(error.kind());
    text_ += "\n  rank " + std::to_string(rank) + ": " + error.what();
  }
  bool has(ErrorKind kind) const { return std::count(kinds_.begin(), kinds_.end(), kind) > 0; }
  const std::string& text() const { return text_; }

 private:
  std::mutex mutex_;
  std::vector<ErrorKind> kinds_;
  std::string text_;
};

struct What {
  Collective collective;
  std::size_t count;
};
// By leaders, by carriers, in one level, by leaders without data.
constexpr What kCalls[] = {{Collective::kAllReduce, 10},
                           {Collective::kAllReduce, 60'000},
                           {Collective::kAllToAll, 10},
                           {Collective::kBarrier, 0}};

// Ranks that `odd` names call the one, the others the other. All raise, nobody by its deadline, and one names both.
void expect_mismatch(const std::string& layout, const What& most, const What& odd,
                     const std::function<bool(int)>& is_odd, const std::string& who) {
  Raised raised;
  run_ranks(world_of(layout), [&](Communicator& c) {
    const What& mine = is_odd(c.rank()) ? odd : most;
    FloatCall first(Collective::kAllReduce, 10, 1);
    c.run(first.call);
    FloatCall made(mine.collective, mine.count, c.size());
    const Error error = error_of([&] {
      c.run(made.call);
      // A rank that had all it needed learns of it in one of its next calls.
      for (int i = 0; i < 8; ++i) c.run(FloatCall(Collective::kBarrier, 0, 1).call);
    });
    raised.add(c.rank(), error);
  });
  const std::string what = layout + ", " + who + " odd: " + std::string(to_string(most.collective)) + "[" +
                           std::to_string(most.count) + "] against " + std::string(to_string(odd.collective)) + "[" +
                           std::to_string(odd.count) + "]" + raised.text();
  EXPECT_FALSE(raised.has(ErrorKind::kTimeout)) << what;
  EXPECT_FALSE(raised.has(ErrorKind::kInternal)) << what;
  EXPECT_TRUE(raised.has(ErrorKind::kMismatch)) << what;
}

class TwoLevelsMismatch : public testing::TestWithParam<const char*> {};

TEST_P(TwoLevelsMismatch, OneRankOrOneHostCallsSomethingElse) {
  const std::string layout = GetParam();
  for (const What& most : kCalls) {
    for (const What& odd : kCalls) {
      if (&most == &odd) continue;
      for (int r = 0; r < static_cast<int>(layout.size()); ++r) {
        expect_mismatch(
            layout, most, odd, [r](int rank) { return rank == r; }, "rank " + std::to_string(r));
        if (testing::Test::HasFailure()) return;
      }
      expect_mismatch(
          layout, most, odd, [&](int rank) { return layout[static_cast<std::size_t>(rank)] == 'b'; }, "host b");
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TwoLevelsMismatch, testing::Values("aabb", "abab", "aaab"),
                         [](const auto& test) { return std::string(test.param); });

// All that have failed, by mismatches and not by deadlines, and each says why.
void expect_all_told(const Raised& raised, const std::string& what) {
  EXPECT_FALSE(raised.has(ErrorKind::kTimeout)) << what << raised.text();
  EXPECT_FALSE(raised.has(ErrorKind::kInternal)) << what << raised.text();
  EXPECT_TRUE(raised.has(ErrorKind::kMismatch)) << what << raised.text();
  EXPECT_EQ(raised.text().find("it failed"), std::string::npos) << what << raised.text();
}

// The root is its host's leader then, so who meets whom between the hosts depends on the call.
TEST(TwoLevelsFault, ABroadcastFromNoFirstRankAgainstAnotherCall) {
  for (const std::string layout : {"aabb", "abab"}) {
    for (const What& other : kCalls) {
      for (int root = 0; root < 4; ++root) {
        Raised raised;
        run_ranks(world_of(layout), [&](Communicator& c) {
          const bool here = layout[static_cast<std::size_t>(c.rank())] == 'a';
          FloatCall made(here ? Collective::kBroadcast : other.collective, here ? 10 : other.count, c.size(),
                         here ? root : -1);
          raised.add(c.rank(), error_of([&] {
                       c.run(made.call);
                       for (int i = 0; i < 8; ++i) c.run(FloatCall(Collective::kBarrier, 0, 1).call);
                     }));
        });
        expect_all_told(
            raised, layout + ", root " + std::to_string(root) + " against " + std::string(to_string(other.collective)));
      }
    }
  }
}

// Lists of sizes of which one rank has another idea, such that what travels on the way to it has the sizes it expects.
TEST(TwoLevelsFault, ListsOfSizesThatDifferOnOneRank) {
  using Sizes = std::vector<std::size_t>;
  struct Lists {
    Sizes most, odd;
  };
  const Lists cases[] = {{{20'000, 100, 100, 100}, {16'384, 100, 100, 100}},
                         {{16'384, 100, 100, 100}, {16'385, 100, 100, 100}},
                         {{8192, 16'384, 100, 100}, {16'384, 8192, 100, 100}}};
  for (const std::string layout : {"aabb", "abcd"}) {
    for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter}) {
      for (const Lists& lists : cases) {
        Raised raised;
        run_ranks(world_of(layout), [&](Communicator& c) {
          const Sizes& counts = c.rank() == 3 ? lists.odd : lists.most;
          std::vector<std::vector<float>> blocks;
          std::vector<void*> pointers;
          Sizes bytes;
          for (const std::size_t count : counts) {
            blocks.emplace_back(count);
            pointers.push_back(blocks.back().data());
            bytes.push_back(count * sizeof(float));
          }
          const auto own = static_cast<std::size_t>(c.rank());
          std::vector<float> single(counts[own]);
          Call call;
          call.collective = collective;
          call.dtype = DataType::kFloat32;
          call.uneven = true;
          call.count = counts[own];
          call.input = Blocks::single(single.data(), bytes[own]);
          call.output = Blocks::list(pointers.data(), bytes.data());
          if (collective == Collective::kReduceScatter) std::swap(call.input, call.output);
          raised.add(c.rank(), error_of([&] {
                       c.run(call);
                       for (int i = 0; i < 8; ++i) c.run(FloatCall(Collective::kBarrier, 0, 1).call);
                     }));
        });
        expect_all_told(raised, layout + ", " + std::string(to_string(collective)) + " of " +
                                    std::to_string(lists.most[0]) + " and " + std::to_string(lists.odd[0]));
      }
    }
  }
}

// One rank does not come, whichever: leaders and carriers wait for it on its host or for its host, the others for them.
TEST(TwoLevelsFault, AMissingRankIsNamedAtTheDeadline) {
  for (const std::size_t count : {10UL, 60'000UL, 300'000UL}) {
    for (int missing = 0; missing < 4; ++missing) {
      Raised raised;
      std::atomic<int> done{0};
      run_ranks(world_of("aabb"), [&](Communicator& c) {
        FloatCall made(Collective::kAllReduce, count, 1);
        c.run(made.call);
        c.set_timeout(milliseconds(300));  // not for the forming of the group, which a busy machine delays
        if (c.rank() == missing) {
          while (done.load() < 3) std::this_thread::yield();
          return;
        }
        const Error error = error_of([&] { c.run(made.call); });
        EXPECT_TRUE(error.kind() == ErrorKind::kTimeout || error.kind() == ErrorKind::kPeerLost) << error.what();
        raised.add(c.rank(), error);
        ++done;
      });
      EXPECT_TRUE(raised.has(ErrorKind::kTimeout)) << raised.text();
      EXPECT_NE(raised.text().find("rank " + std::to_string(missing) + " has not arrived"), std::string::npos)
          << "missing " << missing << raised.text();
    }
  }
}

// Rank 0 is told to give up early. Who waits for rank 3 hears that over the links to rank 0's host, and goes on to its
// own deadline, at which it can say who is missing.
TEST(TwoLevelsFault, AMissingRankIsNamedThoughAnotherHasGivenUpBefore) {
  for (const std::size_t count : {10UL, 60'000UL, 300'000UL}) {
    std::atomic<int> done{0};
    run_ranks(world_of("aabb"), [&](Communicator& c) {
      FloatCall made(Collective::kAllReduce, count, 1);
      c.run(made.call);
      c.set_timeout(milliseconds(c.rank() == 0 ? 100 : 1000));
      if (c.rank() == 3) {
        while (done.load() < 3) std::this_thread::yield();
        return;
      }
      const Error error = error_of([&] { c.run(made.call); });
      if (c.rank() == 2) {
        EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
        EXPECT_NE(std::string(error.what()).find("rank 3 has not arrived"), std::string::npos) << error.what();
      }
      ++done;
    });
  }
}

// A host does not come: the leader waits for messages, the others for the leader. Each of them can end the call.
TEST(TwoLevelsFault, AbortOfAnyRankWakesTheOthers) {
  for (const std::size_t count : {10UL, 60'000UL, 300'000UL}) {
    for (const int aborts : {0, 1}) {
      std::atomic<int> done{0};
      run_ranks(world_of("aabb"), [&](Communicator& c) {
        FloatCall made(Collective::kAllReduce, count, 1);
        made.in.assign(count, 1);
        c.run(made.call);
        if (c.rank() >= 2) {
          while (done.load() < 2) std::this_thread::yield();
          // What the others gave before may be all that the first one needs; then it is right, and the next one fails.
          const Error error = error_of([&] {
            for (int calls = 0; calls < 2; ++calls) {
              made.out.assign(count, -1);
              c.run(made.call);
              EXPECT_EQ(made.out, std::vector<float>(count, 4));
            }
          });
          EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
          return;
        }
        Error error(ErrorKind::kInternal, "");
        if (c.rank() == aborts) {
          const WorkPtr work = c.submit(made.call);
          c.abort("enough");
          error = error_of([&] { work->wait(); });
          EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
        } else {
          error = error_of([&] { c.run(made.call); });
          EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
        }
        ++done;
      });
    }
  }
}

TEST(TwoLevelsFault, ARankThatLeavesEndsTheCallsOfAll) {
  for (const std::size_t count : {10UL, 60'000UL, 300'000UL}) {
    for (int leaves = 0; leaves < 4; ++leaves) {
      Raised raised;
      run_ranks(world_of("aabb"), [&](Communicator& c) {
        FloatCall made(Collective::kAllReduce, count, 1);
        c.run(made.call);
        if (c.rank() == leaves) return;  // its communicator is destroyed
        const Error error = error_of([&] { c.run(made.call); });
        EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
        raised.add(c.rank(), error);
      });
      EXPECT_NE(raised.text().find("rank " + std::to_string(leaves) + " "), std::string::npos) << raised.text();
    }
  }
}

}  // namespace
}  // namespace tutti::test
