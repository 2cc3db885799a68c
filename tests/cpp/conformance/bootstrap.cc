// The conformance suite of all seeds; see bootstrap.h.
#include "conformance/bootstrap.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "bootstrap/exchange.h"
#include "bootstrap/memory_store.h"
#include "communicator/calls.h"
#include "communicator/counted_steps.h"
#include "communicator/forming_deaths.h"
#include "communicator/thread_ranks.h"
#include "support/sanitized.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

using Body = std::function<void(SeededRank&, int rank)>;

// Ranks as threads, a letter a rank that names its host. Each stays until all have run `body`.
void run_seeded(const BootstrapSeed& seed, const std::string& layout, const Body& body) {
  const int size = static_cast<int>(layout.size());
  MemoryStore carrier;
  std::barrier over(size);
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      std::unique_ptr<SeededRank> rank;
      try {
        rank = seed.enter(carrier, r, size, options_of(layout, r));
        body(*rank, r);
      } catch (const std::exception& error) {
        ADD_FAILURE() << layout << ", rank " << r << ": " << error.what();
      }
      over.arrive_and_wait();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

constexpr auto kLong = std::chrono::minutes(10);
const std::string kMany(kMostDirect + 1, 'a');  // of so many the first gathers for all

bool says(const Error& error, const std::string& part) {
  if (std::string(error.what()).find(part) != std::string::npos) return true;
  ADD_FAILURE() << "no '" << part << "' in: " << error.what();
  return false;
}

std::string blob_of(int rank, std::size_t topic) {
  constexpr std::size_t kBytes[] = {0, 1, 1015, 1016, 1017, 300'000};
  return std::string(kBytes[(static_cast<std::size_t>(rank) + topic) % std::size(kBytes)],
                     static_cast<char>('a' + rank));
}

}  // namespace

// The first: children of a process that has ranks are none. Rank 1 dies after each so-manyth message of its own, up to
// where it has formed and made a call. The deadline lies behind the watchdog of every process, so nobody has waited for
// it; and what they raise is a lost peer.
TEST_P(BootstrapConformance, ADeathAtAStepEndsTheOthersAtOnce) {
  constexpr int kVictim = 1, kKnown = 4;  // before it nobody knows of the victim: one that never came
  const std::string layout = "aab";
  bool died = true;
  for (int steps = kKnown; died;) {
    Worlds worlds;
    for (int i = 0; i < 4; ++i, steps += kSanitized ? 12 : 3) {
      worlds.start(layout, "it dies after " + std::to_string(steps), [&](Store& store, int r) {
        const auto rank = GetParam().enter(store, r, 3, options_of(layout, r));
        const auto form = [&] { return rank->form(options_of(layout, r)); };
        if (r != kVictim) return lost({store, layout, r, kVictim}, form);
        die_after(steps);
        form()->run(Call{});
        die_after(-1);
        return int{kFormed};
      });
    }
    worlds.end([&](Worlds::World& world) {
      expect_told(world.ranks, kVictim, world.what);
      died = victim_died(world.ranks, kVictim, world.what) && died;
    });
    if (HasFailure()) return;
  }
}

TEST_P(BootstrapConformance, AllGetWhatEachGivesByRank) {
  for (const std::string& layout : {std::string("a"), std::string("aa"), std::string("aba"), kMany}) {
    run_seeded(GetParam(), layout, [&](SeededRank& seeded, int rank) {
      const BootstrapPtr all = seeded.bootstrap("all");
      EXPECT_EQ(all->rank(), rank);
      EXPECT_EQ(all->size(), static_cast<int>(layout.size()));
      for (std::size_t topic = 0; topic < 6; ++topic) {
        const auto blobs = all->all_gather("topic " + std::to_string(topic), blob_of(rank, topic), kLong);
        ASSERT_EQ(blobs.size(), layout.size());
        for (std::size_t r = 0; r < blobs.size(); ++r) EXPECT_EQ(blobs[r], blob_of(static_cast<int>(r), topic));
      }
    });
  }
}

TEST_P(BootstrapConformance, NobodyPassesABarrierBeforeAllHaveCome) {
  for (const std::string& layout : {std::string("aab"), kMany}) {
    std::atomic<int> come{0};  // relaxed: what a barrier orders is what is tested, and each count is of one thread
    const int size = static_cast<int>(layout.size());
    run_seeded(GetParam(), layout, [&](SeededRank& seeded, int) {
      const BootstrapPtr all = seeded.bootstrap("all");
      for (int round = 1; round <= 5; ++round) {
        come.fetch_add(1, std::memory_order_relaxed);
        all->all_gather("barrier " + std::to_string(round), {}, kLong);
        EXPECT_GE(come.load(std::memory_order_relaxed), round * size);
      }
    });
  }
}

TEST_P(BootstrapConformance, WhatARankTellsEndsTheOthersWaits) {
  for (const std::string& layout : {std::string("aab"), kMany}) {
    run_seeded(GetParam(), layout, [&](SeededRank& seeded, int rank) {
      const BootstrapPtr all = seeded.bootstrap("all");
      if (rank == 1) return all->tell(Error(ErrorKind::kInvalidArgument, "there is no such file"));
      const Error waiting = error_of([&] { all->all_gather("cards", {}, kLong); });
      EXPECT_EQ(waiting.kind(), ErrorKind::kPeerLost);
      says(waiting, "rank 1 cannot join");
      says(waiting, "there is no such file");
    });
  }
}

TEST_P(BootstrapConformance, WhoeverWatchesIsTold) {
  run_seeded(GetParam(), "aab", [&](SeededRank& seeded, int rank) {
    const BootstrapPtr all = seeded.bootstrap("all");
    if (rank == 1) return all->tell(KnownToAll(ErrorKind::kMismatch, "there are two versions"));
    const Error watching = error_of([&] {
      for (;;) all->watch();
    });
    EXPECT_EQ(watching.kind(), ErrorKind::kMismatch) << "as it is known to all";
    EXPECT_STREQ(watching.what(), "there are two versions");
  });
}

TEST_P(BootstrapConformance, WhoDoesNotComeIsNamed) {
  std::barrier over(3);
  run_seeded(GetParam(), "aab", [&](SeededRank& seeded, int rank) {
    const BootstrapPtr all = seeded.bootstrap("all");
    if (rank != 2) {
      const Error error = error_of([&] { all->all_gather("cards", {}, std::chrono::milliseconds(300)); });
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      says(error, "waited 300 ms for all 3 ranks");
      says(error, "rank 2 did not come");
    }
    over.arrive_and_wait();
  });
}

TEST_P(BootstrapConformance, AGroupFormsAndSplits) {
  for (const std::string& layout : {std::string("a"), std::string("aa"), std::string("abab"), kMany}) {
    const int size = static_cast<int>(layout.size());
    run_seeded(GetParam(), layout, [&](SeededRank& seeded, int rank) {
      const auto group = seeded.form(options_of(layout, rank));
      ASSERT_EQ(group->rank(), rank);
      ASSERT_EQ(group->size(), size);
      EXPECT_EQ(sum_over(*group, rank), size * (size - 1) / 2);
      const auto part = split_group(*group, rank % 2, -rank, "part");
      EXPECT_EQ(part->size(), (size + 1 - rank % 2) / 2);
      EXPECT_EQ(part->rank(), part->size() - 1 - rank / 2) << "by its key";
      EXPECT_EQ(sum_over(*part, 1), part->size());
      group->run(Call{});  // nobody leaves before all have done
    });
  }
}

TEST_P(BootstrapConformance, SettingsThatDifferAreNamedToAll) {
  run_seeded(GetParam(), "aab", [&](SeededRank& seeded, int rank) {
    CommunicatorOptions options = options_of("aab", rank);
    options.config.stage_bytes = rank == 1 ? 128 << 10 : 64 << 10;
    const Error error = error_of([&] { seeded.form(options); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    says(error,
         "cannot form, for its ranks have different settings: TUTTI_STAGE_BYTES is 65536 on ranks 0 and 2 and "
         "131072 on rank 1");
  });
}

TEST_P(BootstrapConformance, WhatKeepsOneRankFromJoiningIsToldToAll) {
  run_seeded(GetParam(), "aab", [&](SeededRank& seeded, int rank) {
    CommunicatorOptions options = options_of("aab", rank);
    if (rank == 2) options.config.plan_path = "/nowhere/at/all";
    const Error error = error_of([&] { seeded.form(options); });
    says(error, "/nowhere/at/all");
    if (rank != 2) says(error, "rank 2 cannot join");
    EXPECT_EQ(error.kind() == ErrorKind::kPeerLost, rank != 2) << error.what();
  });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(BootstrapConformance);

}  // namespace tutti::test
