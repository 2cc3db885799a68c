// What ranks of a group make in it, over the group's own connections.
#include "communicator/group_bootstrap.h"

#include <gtest/gtest.h>

#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/exchange.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

constexpr auto kLong = std::chrono::minutes(10);

// Of this rank and topic, of all lengths around what one message holds.
std::string blob_of(int rank, std::size_t topic) {
  constexpr std::size_t kLengths[] = {0, 10, 1015, 1016, 1017, 40'000, 300'000};
  std::string blob(kLengths[(static_cast<std::size_t>(rank) + topic) % std::size(kLengths)], 'x');
  for (std::size_t i = 0; i < blob.size(); ++i)
    blob[i] = static_cast<char>(i * 7 + topic + static_cast<std::size_t>(rank));
  return blob;
}

class GroupBootstrap : public ::testing::TestWithParam<int> {
 protected:
  GroupBootstrap() {
    world.size = 3;
    if (GetParam() > 1) world.host_of = [](int r) { return "host" + std::to_string(r % 2); };
  }
  World world;
};
INSTANTIATE_TEST_SUITE_P(OnHosts, GroupBootstrap, ::testing::Values(1, 2));

TEST_P(GroupBootstrap, GathersTopicsInAnyOrder) {
  run_ranks(world, [](Communicator& c) {
    const auto all = GroupBootstraps(c).among(all_ranks(3), "all");
    EXPECT_EQ(all->rank(), c.rank());
    // Each rank has a thread a topic, which come as they will.
    std::vector<std::thread> threads;
    for (std::size_t topic = 0; topic < 8; ++topic) {
      threads.emplace_back([&, topic] {
        const auto blobs = all->all_gather("topic " + std::to_string(topic), blob_of(c.rank(), topic), kLong);
        ASSERT_EQ(blobs.size(), 3U);
        for (int r = 0; r < 3; ++r) EXPECT_EQ(blobs[static_cast<std::size_t>(r)], blob_of(r, topic)) << topic;
      });
    }
    c.run(Call{});
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(GroupBootstrap, ConcernsItsMembersOnly) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() == 1) return c.run(Call{});
    const auto pair = GroupBootstraps(c).among({2, 0}, "pair");
    EXPECT_EQ(pair->rank(), c.rank() == 2 ? 0 : 1);
    EXPECT_EQ(pair->all_gather("names", "rank " + std::to_string(c.rank()), kLong),
              (std::vector<std::string>{"rank 2", "rank 0"}));
    c.run(Call{});
  });
}

TEST_P(GroupBootstrap, WhatARankTellsEndsTheOthersWaits) {
  run_ranks(world, [](Communicator& c) {
    const auto all = GroupBootstraps(c).among(all_ranks(3), "all");
    if (c.rank() == 1) {
      all->tell(Error(ErrorKind::kInvalidArgument, "there is no such file"));
    } else {
      const Error error = error_of([&] { all->all_gather("cards", "", kLong); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_NE(std::string(error.what()).find("rank 1 cannot join 'all' of group 'tutti'"), std::string::npos)
          << error.what();
      EXPECT_NE(std::string(error.what()).find("there is no such file"), std::string::npos) << error.what();
    }
    c.run(Call{});  // the group itself is well
  });
}

TEST_P(GroupBootstrap, WhatIsKnownToAllIsToldAsItIs) {
  run_ranks(world, [](Communicator& c) {
    const auto all = GroupBootstraps(c).among(all_ranks(3), "all");
    if (c.rank() == 1) {
      all->tell(KnownToAll(ErrorKind::kMismatch, "the ranks differ"));
    } else {
      const Error error = error_of([&] {
        for (;;) all->watch();
      });
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_STREQ(error.what(), "the ranks differ");
    }
    c.run(Call{});
  });
}

TEST_P(GroupBootstrap, TheEndOfItsTimeNamesWhoDidNotCome) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() == 0) {
      const auto all = GroupBootstraps(c).among(all_ranks(3), "all");
      const Error error = error_of([&] { all->all_gather("cards", "", std::chrono::milliseconds(50)); });
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      EXPECT_NE(std::string(error.what()).find("ranks 1 and 2 did not come"), std::string::npos) << error.what();
    }
    c.run(Call{});
  });
}

TEST_P(GroupBootstrap, EndsByWhatItLooksAt) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() == 0) {
      const auto all =
          GroupBootstraps(c).among(all_ranks(3), "all", [] { throw_error(ErrorKind::kAborted, "enough"); });
      EXPECT_STREQ(error_of([&] { all->all_gather("cards", "", kLong); }).what(), "enough");
    }
    c.run(Call{});
  });
}

TEST_P(GroupBootstrap, TheGroupsOwnFailureEndsIt) {
  std::barrier<> told(3);  // who leaves earlier is missed by the others
  run_ranks(world, [&](Communicator& c) {
    const auto all = GroupBootstraps(c).among(all_ranks(3), "all");
    if (c.rank() == 1) {
      c.abort("of a whim");
    } else {
      const Error error = error_of([&] { all->all_gather("cards", "", kLong); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
    }
    told.arrive_and_wait();
  });
}

TEST(GroupBootstraps, KeepNothingOfTheirGroup) {
  MemoryStore store;
  auto group = Communicator::create(store, "test", 0, 1, {});
  const GroupBootstraps bootstraps(*group);
  const auto kept = bootstraps.among({0}, "kept");
  EXPECT_EQ(kept->all_gather("cards", "mine", kLong), std::vector<std::string>{"mine"});
  group.reset();
  EXPECT_EQ(error_of([&] { kept->all_gather("more", "", kLong); }).kind(), ErrorKind::kAborted);
  EXPECT_EQ(error_of([&] { bootstraps.among({0}, "new"); }).kind(), ErrorKind::kAborted);
}

}  // namespace
}  // namespace tutti::test
