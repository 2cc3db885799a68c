// What ranks of a group make in it, over the group's own connections.
#include "communicator/group_bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/interruption.h"
#include "bootstrap/exchange.h"
#include "channel/message_frame.h"
#include "communicator/communicator_impl.h"
#include "communicator/formed_group.h"
#include "communicator/thread_ranks.h"
#include "transport/sim/sim_network.h"

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

// Between two ranks, of which rank 0 gets so many bytes and no more.
class HoldingTransport final : public NetworkTransport {
 public:
  static constexpr std::size_t kHeld = sizeof(FrameHeader) + 1;

  explicit HoldingTransport(int rank) : below_(network().transport(rank)), rank_(rank), address_("holding") {}
  static std::unique_ptr<NetworkTransport> create(const NetworkOptions& options) {
    return std::make_unique<HoldingTransport>(options.rank);
  }
  const std::string& address() const noexcept override { return address_; }
  void set_peer_addresses(const std::vector<std::string>&) override {}
  std::string_view name() const noexcept override { return below_.name(); }
  int accept_new(std::span<int> peers) noexcept override { return below_.accept_new(peers); }
  Link* link(int peer) noexcept override {
    if (link_.below == nullptr) link_ = {below_.link(peer), rank_ == 0 ? kHeld : ~std::size_t{0}};
    return &link_;
  }

 private:
  struct Holding final : Link {
    Holding(Link* of, std::size_t bytes) : below(of), left(bytes) {}
    std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override { return below->write_some(head, body); }
    std::size_t read_some(MutableBytes into) noexcept override {
      const std::size_t read = below->read_some(into.first(std::min(into.size(), left)));
      left -= read;
      return read;
    }
    Status status() const noexcept override { return below->status(); }
    Link* below;
    std::size_t left;
  };
  static SimNetwork& network() {
    static SimNetwork one(2, {.max_delay_ns = 0});
    return one;
  }

  Transport& below_;
  const int rank_;
  const std::string address_;
  Holding link_{nullptr, 0};
};

// A reason that has come in part is waited for. The handler of a signal ends that, and no rank is blamed.
TEST(GroupBootstraps, AnInterruptedLookSaysSo) {
  constexpr Network kHolding{"holding", &HoldingTransport::create};
  MemoryStore store;
  std::latch interrupted(1);
  const auto form = [&](int rank) {
    CommunicatorOptions options;
    options.config.host_id = "host " + std::to_string(rank);
    return std::make_shared<CommunicatorImpl>(form_group(store, "test", rank, 2, options, {}, {}, {&kHolding, 1}), rank,
                                              2, options, PlanFiles{}, Tuning{});
  };
  std::thread peer([&] {
    const auto group = form(1);
    GroupBootstraps(*group).among({0, 1}, "all")->tell(Error(ErrorKind::kInvalidArgument, "there is no such file"));
    interrupted.wait();
  });
  const auto group = form(0);
  const auto all = GroupBootstraps(*group).among({0, 1}, "all");
  struct Raised {};
  const auto raise = [](std::string&) noexcept { return std::make_exception_ptr(Raised()); };
  const auto look = [&] {
    const Error error = error_of([&] {
      for (;;) all->watch();
    });
    EXPECT_STREQ(error.what(), "the forming of 'all' of group 'tutti' was interrupted");
  };
  EXPECT_THROW(interruptible(raise, {}, look), Raised);
  interrupted.count_down();
  peer.join();
}

TEST(GroupBootstraps, EndWithTheirGroupWhileTheyWait) {
  std::promise<void> waits;
  std::optional<Error> told;
  MemoryStore store;
  CommunicatorOptions options;
  options.timeout = kLong;
  std::thread peer([&] {
    const auto group = Communicator::create(store, "test", 1, 2, options);
    const auto all = GroupBootstraps(*group).among(all_ranks(2), "all");
    told = error_of([&] { all->all_gather("other", "", kLong); });
  });
  auto group = Communicator::create(store, "test", 0, 2, options);
  const std::weak_ptr<Communicator> left = group;
  // Twice a second: the first time it has waited already.
  const auto all = GroupBootstraps(*group).among(all_ranks(2), "all", [&, once = false]() mutable {
    if (!std::exchange(once, true)) waits.set_value();
  });
  std::thread forming([&] {
    const Error error = error_of([&] { all->all_gather("cards", "", kLong); });
    EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
    EXPECT_NE(std::string(error.what()).find("'all' cannot form: group 'tutti' has been destroyed"), std::string::npos)
        << error.what();
    EXPECT_TRUE(left.expired());
  });
  waits.get_future().wait();
  group.reset();
  forming.join();
  peer.join();
  EXPECT_EQ(told->kind(), ErrorKind::kPeerLost) << told->what();
  EXPECT_NE(std::string(told->what()).find("rank 0 has left"), std::string::npos) << told->what();
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
