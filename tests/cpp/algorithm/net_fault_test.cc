// What goes wrong in a call over messages ends it on every rank.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "algorithm/net_ranks.h"

namespace tutti::test {
namespace {

constexpr std::size_t kBytes = 200'000;  // sent by announcement, in several segments

// A rank's memory for any collective, and the call over it.
struct Buffers {
  explicit Buffers(int ranks) : in(kBytes * static_cast<std::size_t>(ranks)), out(in.size()) {}

  Call call(Collective collective, std::size_t bytes, int root = -1) {
    Call call;
    call.collective = collective;
    call.dtype = DataType::kFloat32;
    call.root = root;
    call.count = collective == Collective::kBarrier ? 0 : bytes / 4;
    call.input = Blocks::single(in.data(), bytes);
    call.output = Blocks::single(collective == Collective::kBroadcast ? in.data() : out.data(), bytes);
    return call;
  }

  std::vector<std::byte> in;
  std::vector<std::byte> out;
};

bool rooted(Collective c) {
  return c == Collective::kReduce || c == Collective::kBroadcast || c == Collective::kGather ||
         c == Collective::kScatter;
}

class NetFault : public ::testing::TestWithParam<int> {
 protected:
  struct Result {
    Outcome outcome;
    std::string theirs;
  };

  // Every rank makes its own call; what became of each.
  std::vector<Result> run(const std::function<Call(int rank, Buffers&)>& call_of) {
    std::vector<Result> results(static_cast<std::size_t>(size_));
    on_ranks(size_, [&](NetRank& rank) {
      Buffers buffers(size_);
      const Call call = call_of(rank.rank, buffers);
      const auto algorithms = algorithms_of(call.collective);
      const std::size_t bytes = call.count * 4;
      const auto fit = std::find_if(algorithms.begin(), algorithms.end(),
                                    [&](const auto& a) { return a->refusal(shape_of(call, size_, bytes)) == nullptr; });
      Result& result = results[static_cast<std::size_t>(rank.rank)];
      result.outcome = rank.run(**fit, call, kFaultBound);
      result.theirs = describe(rank.context.mismatched);
    });
    return results;
  }

  // Everybody ends, nobody by its deadline, and somebody names the difference.
  void expect_mismatch(const std::vector<Result>& results, const std::string& what) {
    int named = 0;
    std::string all;
    for (const Result& result : results) {
      all += " " + std::to_string(static_cast<int>(result.outcome.status)) + "/" + std::to_string(result.outcome.peer);
      EXPECT_NE(result.outcome.status, Status::kTimeout) << what;
      named += result.outcome.status == Status::kMismatch ? 1 : 0;
    }
    EXPECT_GT(named, 0) << what << ": status/peer of each rank:" << all;
  }

  static constexpr std::chrono::milliseconds kFaultBound{20'000};
  const int size_ = GetParam();
};

constexpr Collective kAll[] = {Collective::kAllReduce,     Collective::kReduce,   Collective::kBroadcast,
                               Collective::kAllGather,     Collective::kGather,   Collective::kScatter,
                               Collective::kReduceScatter, Collective::kAllToAll, Collective::kBarrier};

// Every pair of collectives, small and large: rank 1 calls the one, all others the other.
TEST_P(NetFault, OneRankCallsSomethingElse) {
  for (const std::size_t bytes : {std::size_t{400}, kBytes}) {
    for (const Collective most : kAll) {
      for (const Collective one : kAll) {
        if (most == one) continue;
        const auto results = run([&](int rank, Buffers& buffers) {
          const Collective c = rank == 1 ? one : most;
          return buffers.call(c, bytes, rooted(c) ? 0 : -1);
        });
        expect_mismatch(results, std::string(to_string(most)) + " against " + std::string(to_string(one)));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(NetFault, RootsOrCountsDiffer) {
  for (const Collective c : kAll) {
    if (c == Collective::kBarrier) continue;
    if (rooted(c)) {
      expect_mismatch(run([&](int rank, Buffers& buffers) { return buffers.call(c, 400, rank == size_ - 1 ? 1 : 0); }),
                      std::string(to_string(c)) + " root");
    }
    expect_mismatch(
        run([&](int rank, Buffers& buffers) { return buffers.call(c, rank == 0 ? 400 : 404, rooted(c) ? 0 : -1); }),
        std::string(to_string(c)) + " count");
    if (HasFailure()) return;
  }
}

TEST_P(NetFault, UnevenSizesDisagree) {
  const auto results = run([&](int rank, Buffers& buffers) {
    Call call = buffers.call(Collective::kAllToAll, 400);
    call.uneven = true;
    if (rank == 0) call.input.bytes = 800;
    return call;
  });
  expect_mismatch(results, "all_to_all");
}

// The last rank never makes the call and goes away while the others wait for it.
TEST_P(NetFault, ARankThatIsGoneEndsEverybodysCall) {
  for (const Collective c : kAll) {
    for (const std::size_t bytes : {std::size_t{400}, kBytes}) {
      std::mutex mutex;
      std::vector<Outcome> outcomes;
      on_ranks(size_, [&](NetRank& rank) {
        Buffers buffers(size_);
        if (rank.rank == size_ - 1) {
          rank.port.reset();
          rank.transport.reset();
          return;
        }
        const Call call = buffers.call(c, bytes, rooted(c) ? size_ - 1 : -1);
        const auto algorithms = algorithms_of(c);
        const auto fit = std::find_if(algorithms.begin(), algorithms.end(), [&](const auto& a) {
          return a->refusal(shape_of(call, size_, bytes)) == nullptr;
        });
        const Outcome outcome = rank.run(**fit, call, kFaultBound);
        const std::lock_guard lock(mutex);
        outcomes.push_back(outcome);
      });
      const bool blamed = std::any_of(outcomes.begin(), outcomes.end(), [&](Outcome o) { return o.peer == size_ - 1; });
      EXPECT_TRUE(blamed) << to_string(c);
      for (const Outcome& outcome : outcomes) {
        EXPECT_NE(outcome.status, Status::kTimeout) << to_string(c);
        // Ranks that did not need the lost one may be through with a rooted call.
        EXPECT_TRUE(rooted(c) || !outcome.ok()) << to_string(c);
      }
      if (HasFailure()) return;
    }
  }
}

// A rank that never calls: the others end at their deadline, and nothing of theirs stays posted.
TEST_P(NetFault, ARankThatNeverCallsIsATimeout) {
  std::barrier over(size_);
  on_ranks(size_, [&](NetRank& rank) {
    if (rank.rank != 0) {
      Buffers buffers(size_);
      const Call call = buffers.call(Collective::kAllReduce, kBytes);
      const Outcome outcome =
          rank.run(*algorithm_named(Collective::kAllReduce, "ring"), call, std::chrono::milliseconds(300));
      EXPECT_FALSE(outcome.ok());
      EXPECT_EQ(rank.port->pending(), 0);
    }
    over.arrive_and_wait();
  });
}

// A DataLoader's worker is forked with everything in it. What it destroys must not reach its parent's connections.
TEST_P(NetFault, AForkedChildLeavesTheConnectionsAlone) {
  std::barrier forked(size_);
  on_ranks(size_, [&](NetRank& rank) {
    Buffers buffers(size_);
    const Call call = buffers.call(Collective::kAllReduce, kBytes);
    const auto ring = algorithm_named(Collective::kAllReduce, "ring");
    EXPECT_TRUE(rank.run(*ring, call, kFaultBound).ok());
    forked.arrive_and_wait();
    if (rank.rank == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        rank.port.reset();
        rank.transport.reset();
        ::_exit(0);
      }
      int status = -1;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    forked.arrive_and_wait();
    EXPECT_TRUE(rank.run(*ring, call, kFaultBound).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NetFault, ::testing::Values(2, 3, 5),
                         [](const auto& p) { return "Ranks" + std::to_string(p.param); });

}  // namespace
}  // namespace tutti::test
