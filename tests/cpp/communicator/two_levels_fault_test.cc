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
