// Groups from an id of 128 bytes and from a parent: no store, and nothing left of what they met at.
#include "tutti/group_id.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/exchange.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/ranks.h"
#include "communicator/calls.h"
#include "communicator/gather_all.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "executor/executor_plans.h"
#include "support/child_process.h"
#include "support/sanitized.h"

namespace tutti {
namespace {

using test::sum_over;

CommunicatorOptions options_of(int rank, int hosts = 1) {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(30'000);
  options.config.log_level = "error";
  options.config.host_id = hosts > 1 ? "host " + std::to_string(rank % hosts) : "";
  return options;
}

// As a program does that forks its ranks. The first tests: their process has used nothing of the library yet.
TEST(GroupId, MadeBeforeAForkItServesTheChildren) {
  if (test::kSanitized) {
    GTEST_SKIP()
        << "in a child of a process with threads the thread sanitizer starts none, and the address sanitizer's "
           "allocator is locked for good if one of them was in it";
  }
  const int code = test::run_in_child([] {
    const GroupId id = make_group_id(Config{}, "localhost");
    const auto rank_main = [&](int rank) {
      return test::fork_rank([&id, rank] {
        const auto group = join_group(id, rank, 2, options_of(rank));
        const auto part = split_group(*group, 0, -rank, "part");
        return sum_over(*part, 1) == 2 && part->rank() == 1 - rank;
      });
    };
    const std::array<pid_t, 2> ranks = {rank_main(0), rank_main(1)};
    const bool good = test::wait_for(ranks[0]);
    return test::wait_for(ranks[1]) && good ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

// One rank has given what the others need of it first, another has not come at all; the first one's process is killed.
// A child that it has forked meanwhile lives on.
TEST(GroupId, ARankThatDiesWhileItFormsIsAnErrorAtOnce) {
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd from_child(ends[0]), to_parent(ends[1]);
  test::Gate has_given, ended;
  CommunicatorOptions options = options_of(0);
  options.timeout = std::chrono::minutes(10);  // the test's watchdog comes first
  test::ChildProcess rank_1([&] {
    GroupId id;
    if (::read(read_end.get(), id.data(), id.size()) != ssize_t{kGroupIdBytes}) return 1;
    const int before = test::open_sockets();
    std::thread([&] { test::error_of([&] { join_group(id, 1, 3, options); }); }).detach();
    if (!has_given.wait()) return 2;
    return test::run_in_child([&] {
      const int sockets = test::open_sockets() - before;
      if (::write(to_parent.get(), &sockets, sizeof sockets) != ssize_t{sizeof sockets}) return 1;
      ended.wait();
      return 0;
    });
  });
  const GroupId id = make_group_id(Config{}, "localhost");
  ASSERT_EQ(::write(write_end.get(), id.data(), id.size()), ssize_t{kGroupIdBytes});
  int childs_sockets = -1;
  std::thread end([&] {
    const auto given = exchange_key("group", kHostTopic, 1);
    test::error_of([&] { reach(*decode_meeting_place(id), options.timeout)->get(given, std::chrono::seconds(30)); });
    has_given.open();
    EXPECT_EQ(::read(from_child.get(), &childs_sockets, sizeof childs_sockets), ssize_t{sizeof childs_sockets});
    ::kill(rank_1.pid(), SIGKILL);
  });
  options.name = "three";
  const Error error = test::error_of([&] { join_group(id, 0, 3, options); });
  end.join();
  EXPECT_EQ(rank_1.join(), 1000 + SIGKILL);
  ended.open();
  EXPECT_EQ(childs_sockets, 0);
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
  EXPECT_NE(std::string(error.what()).find("rank 1 on host"), std::string::npos) << error.what();
}

TEST(GroupId, RanksMeetByItsBytes) {
  for (const int hosts : {1, 2}) {
    for (const int size : {1, 2, 5}) {
      const GroupId id = make_group_id(Config{}, "localhost");
      const auto errors = test::run_threads(size, [&](int rank) {
        const auto group = join_group(id, rank, size, options_of(rank, hosts));
        EXPECT_EQ(group->rank(), rank);
        EXPECT_EQ(group->host_count(), std::min(hosts, size));
        EXPECT_EQ(sum_over(*group, rank + 1), size * (size + 1) / 2);
      });
      EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(size)));
    }
  }
}

// The address of an interface, chosen.
TEST(GroupId, ItsAddressIsChosen) {
  const GroupId id = make_group_id(Config{});
  const auto errors =
      test::run_threads(2, [&](int rank) { sum_over(*join_group(id, rank, 2, options_of(rank, 2)), 1); });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(GroupId, NothingOfItIsInUseOnceTheGroupHasFormed) {
  const auto form = [](const GroupId& id) {
    std::vector<std::shared_ptr<Communicator>> groups(3);
    const auto errors = test::run_threads(
        3, [&](int rank) { groups[static_cast<std::size_t>(rank)] = join_group(id, rank, 3, options_of(rank)); });
    EXPECT_EQ(errors, std::vector<std::string>(3));
    return groups;
  };
  form(make_group_id(Config{}, "localhost"));  // what the process has once
  const int before = test::open_descriptors();
  const GroupId id = make_group_id(Config{}, "localhost");
  EXPECT_GT(test::open_descriptors(), before);
  {
    const auto groups = form(id);
    const Error gone = test::error_of([&] { join_group(id, 0, 3, options_of(0)); });
    EXPECT_EQ(gone.kind(), ErrorKind::kPeerLost);
    EXPECT_NE(std::string(gone.what()).find("the process that made the group's id at localhost"), std::string::npos)
        << gone.what();
  }
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST(GroupId, OthersBytesAreRefused) {
  const MeetingPlace place{"node7.example", 4711, random_nonce()};
  const MeetingPlaceBytes bytes = encode(place);
  EXPECT_EQ(decode_meeting_place(bytes), place);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    MeetingPlaceBytes other = bytes;
    other[i] = static_cast<char>(other[i] ^ 0x80);
    const auto read = decode_meeting_place(other);  // another secret or name is none that can be told
    if (read) {
      EXPECT_EQ(encode(*read), other) << i;
    }
    if (i < 8 || i >= bytes.size() - 60) {
      EXPECT_EQ(read, std::nullopt) << i;
    }
  }
  const Error error = test::error_of([&] { join_group(GroupId{}, 0, 2, options_of(0)); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  for (const std::string& address : {std::string(kMostAddressBytes + 1, 'a'), std::string()}) {
    EXPECT_THROW(encode(MeetingPlace{address, 1, {}}), Error);
  }
}

// Also where a child of it lives on.
TEST(GroupId, AMakerThatDiesIsAnErrorAtOnce) {
  test::Gate gate, over;
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  test::ChildProcess maker([&] {
    const GroupId id = make_group_id(Config{}, "localhost");
    const pid_t child = ::fork();
    if (child == 0) {
      over.wait();
      ::_exit(0);
    }
    if (child < 0 || ::write(write_end.get(), id.data(), id.size()) != ssize_t{kGroupIdBytes}) return 1;
    gate.wait();
    return 0;
  });
  GroupId id;
  ASSERT_EQ(::read(read_end.get(), id.data(), id.size()), ssize_t{kGroupIdBytes});
  std::thread end([&] { gate.open(); });
  CommunicatorOptions options = options_of(0);
  options.timeout = std::chrono::minutes(10);  // the test's watchdog comes first
  const Error error = test::error_of([&] { join_group(id, 0, 2, options); });
  end.join();
  EXPECT_EQ(maker.join(), 0);
  over.open();
  EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
}

// One that leaves by an error of its own is not taken for a dead one.
TEST(GroupId, WhatRanksDisagreeAboutIsSaidOnAll) {
  const GroupId id = make_group_id(Config{}, "localhost");
  const auto errors = test::run_threads(3, [&](int rank) {
    CommunicatorOptions options = options_of(rank);
    if (rank == 1) options.config.stage_bytes = std::size_t{1} << 20;
    join_group(id, rank, 3, options);
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("TUTTI_STAGE_BYTES"), std::string::npos) << error;
}

TEST(GroupId, TheOldestOfTooManyOffersEnds) {
  std::vector<MeetingPlace> places;
  for (std::size_t i = 0; i <= kMostOffers; ++i) places.push_back(offer_meeting_place("127.0.0.1"));
  EXPECT_EQ(take_offer(places.front()), nullptr);
  for (std::size_t i = 1; i < places.size(); ++i) EXPECT_NE(take_offer(places[i]), nullptr);
  EXPECT_EQ(take_offer(places.back()), nullptr);
}

TEST(SplitGroup, ColorsAndKeysDecideAndPartsSplitAgain) {
  for (const int hosts : {1, 2}) {
    test::World world;
    world.size = 5;
    if (hosts > 1) world.host_of = [](int rank) { return "host " + std::to_string(rank % 2); };
    test::run_ranks(world, [](Communicator& parent) {
      const int rank = parent.rank();
      // 0, 2 and 4 in the opposite order; 1 alone; 3 in none.
      const int color = rank % 2 == 0 ? 7 : rank == 1 ? 0 : -1;
      const auto part = split_group(parent, color, -rank, "part");
      if (rank == 3) {
        EXPECT_EQ(part, nullptr);
      } else {
        EXPECT_EQ(part->name(), "part");
        EXPECT_EQ(part->size(), rank == 1 ? 1 : 3);
        EXPECT_EQ(part->rank(), rank == 1 ? 0 : 2 - rank / 2);
        EXPECT_EQ(sum_over(*part, rank), rank == 1 ? 1 : 6);
      }
      if (part == nullptr || part->size() == 1) return;
      const auto pair = split_group(*part, part->rank() == 0 ? -1 : 1, 0, "pair");
      if (pair != nullptr) {
        EXPECT_EQ(sum_over(*pair, rank), 2);
      }
    });
  }
}

// By a new id, of a group that never had a store. Nothing of what they met at is left.
void shrink_by_a_new_id(int hosts) {
  const GroupId first = make_group_id(Config{}, "localhost"), second = make_group_id(Config{}, "localhost");
  const auto errors = test::run_threads(4, [&](int rank) {
    const auto whole = join_group(first, rank, 4, options_of(rank, hosts));
    EXPECT_EQ(sum_over(*whole, 1), 4);
    if (rank == 2) return whole->abort("gone");
    test::error_of([&] { whole->run(Call{}); });
    const Error none = test::error_of([&] { shrink_group(*whole, GroupId{}, {}, nullptr); });
    EXPECT_EQ(none.kind(), ErrorKind::kInvalidArgument) << none.what();
    std::vector<int> members;
    const auto smaller = shrink_group(*whole, second, std::chrono::milliseconds(2'000), &members);
    EXPECT_EQ(members, (std::vector<int>{0, 1, 3}));
    EXPECT_EQ(smaller->rank(), rank == 3 ? 2 : rank);
    EXPECT_EQ(sum_over(*smaller, rank), 4);
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

// Who waits in a call of the group hears of it, too.
TEST(ShrinkGroup, OneThatFailsHasEndedTheGroup) {
  const GroupId used = make_group_id(Config{}, "localhost");
  const auto errors = test::run_threads(2, [&](int rank) {
    const auto whole = join_group(used, rank, 2, options_of(rank, 1));
    EXPECT_EQ(sum_over(*whole, 1), 2);
    if (rank == 0) {
      const Error error = test::error_of([&] { shrink_group(*whole, used, std::chrono::milliseconds(200), nullptr); });
      EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
    } else {
      test::error_of([&] { whole->run(Call{}); });
    }
    EXPECT_TRUE(whole->failure().has_value());
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(ShrinkGroup, SurvivorsMeetByANewId) {
  for (const int hosts : {1, 2}) {
    // What waiting threads sleep on stays with the process, as many as have slept at once: 7 groups at most.
    bool grows = true;
    for (int round = 0; grows && round < 16; ++round) {
      const int before = test::open_descriptors();
      shrink_by_a_new_id(hosts);
      grows = test::open_descriptors() > before;
    }
    EXPECT_FALSE(grows);
  }
}

// Where a rank cannot join its part, the others of it hear why, and what it raises is its own error though the parent
// ends; other parts form.
TEST(SplitGroup, ARankThatCannotJoinIsAnErrorOfItsPart) {
  test::World world;
  world.size = 4;
  test::PlanFolder of_all, of_one;
  const std::string others = of_all.add("plan", plan::two_step_all_reduce(4));
  const std::string file = of_one.add("plan", plan::two_step_all_reduce(4));
  world.plan_path_of = [&](int rank) { return rank == 1 ? file : others; };
  test::run_ranks(world, [&](Communicator& parent) {
    const int rank = parent.rank();
    if (rank == 1) std::filesystem::remove(file);
    if (rank >= 2) {
      EXPECT_EQ(sum_over(*split_group(parent, 1, 0, "part"), 1), 2);
      return;
    }
    const std::string error = test::error_of([&] { split_group(parent, 0, 0, "part"); }).what();
    EXPECT_NE(error.find(file), std::string::npos) << error;
    EXPECT_EQ(error.starts_with("rank 1 cannot join"), rank == 0) << error;
  });
}

TEST(SplitGroup, APartHearsWhyARankOfItGaveUp) {
  for (const int hosts : {1, 2}) {
    const GroupId id = make_group_id(Config{}, "localhost");
    const auto errors = test::run_threads(2, [&](int rank) {
      const auto parent = join_group(id, rank, 2, options_of(rank, hosts));
      if (rank == 0) {
        split_group(*parent, 0, 0, "part");
      } else {
        // Its color and key, and what it names its part; then it gives up.
        gather_all(*parent, std::array<std::uint64_t, 2>{0, std::hash<std::string>()("part")});
        parent->abort("enough");
      }
    });
    EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
    EXPECT_NE(errors[0].find("it aborted the group: enough"), std::string::npos) << errors[0];
    EXPECT_EQ(errors[1], "");
  }
}

TEST(SplitGroup, TheRanksOfAPartGiveOneName) {
  for (const int hosts : {1, 2}) {
    const GroupId id = make_group_id(Config{}, "localhost");
    const auto errors = test::run_threads(3, [&](int rank) {
      const auto parent = join_group(id, rank, 3, options_of(rank, hosts));
      // Parts need not have the same.
      const auto part = [&](const std::string& name) { return split_group(*parent, rank == 2 ? 1 : 0, 0, name); };
      const Error error = test::error_of([&] { part("part of " + std::to_string(rank)); });
      EXPECT_EQ(error.kind(), rank == 2 ? ErrorKind::kInternal : ErrorKind::kMismatch) << error.what();
      if (rank < 2) {
        const std::string why = "rank " + std::to_string(1 - rank) +
                                " gives the part of color 0 another name than rank " + std::to_string(rank);
        EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      }
      EXPECT_EQ(part(rank == 2 ? "other" : "part")->size(), rank == 2 ? 1 : 2);
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
  }
}

// Of one rank: the others are told, and wait for nobody; rank 2 never comes.
void one_cannot_join(const std::string& why, int rank_1, const std::function<CommunicatorOptions()>& settings_of_1) {
  const GroupId id = make_group_id(Config{}, "localhost");
  const auto errors = test::run_threads(2, [&](int rank) {
    if (rank == 1) {
      join_group(id, rank_1, 3, settings_of_1);
    } else {
      CommunicatorOptions options = options_of(rank);
      options.timeout = std::chrono::minutes(10);
      join_group(id, rank, 3, options);
    }
  });
  const std::string who = "rank " + std::to_string(rank_1) + " cannot join the group of rank 0: ";
  for (const std::string& error : errors) EXPECT_NE(error.find(why), std::string::npos) << error;
  EXPECT_TRUE(errors[0].starts_with(who)) << errors[0];
  EXPECT_EQ(errors[1].find(who), std::string::npos) << errors[1];
}

TEST(GroupId, ATimeThatMakesNoSenseIsSaidOnAll) {
  one_cannot_join("must be more than 0", 1, [] {
    CommunicatorOptions options = options_of(1);
    options.timeout = {};
    return options;
  });
}

TEST(GroupId, WhatOneReadsOfItsSettingsIsSaidOnAll) {
  one_cannot_join("no such setting", 1,
                  []() -> CommunicatorOptions { throw_error(ErrorKind::kInvalidArgument, "no such setting"); });
  one_cannot_join("no such file", 1, []() -> CommunicatorOptions { throw std::runtime_error("no such file"); });
  one_cannot_join("no memory to join", 1, []() -> CommunicatorOptions { throw std::bad_alloc(); });
}

TEST(GroupId, ARankThatThereIsNotIsSaidOnAll) {
  for (const int rank : {3, -1}) one_cannot_join("of 3: a rank lies between", rank, [] { return options_of(1); });
}

}  // namespace
}  // namespace tutti
