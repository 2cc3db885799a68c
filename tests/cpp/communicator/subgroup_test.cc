// Groups of some ranks of a group, formed in its messages. Deaths: forming_deaths_test.cc, forming_steps_test.cc.
#include "communicator/subgroup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <latch>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "communicator/communicator_impl.h"
#include "communicator/group_bootstrap.h"
#include "communicator/group_store.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

using Group = std::shared_ptr<Communicator>;

Group form(Communicator& parent, const std::vector<int>& members, const std::string& id,
           std::chrono::milliseconds timeout = std::chrono::minutes(10)) {
  return form_in(parent, members, id, [&] {
    CommunicatorOptions options = parent.options();
    options.name = id;
    options.timeout = timeout;
    return options;
  });
}

// Adds up the ranks of the parent.
void expect_sum(Communicator& group, int own, const std::vector<int>& members) {
  std::int32_t sum = own;
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kInt32;
  call.count = 1;
  call.input = call.output = Blocks::single(&sum, sizeof sum);
  group.run(call);
  std::int32_t wanted = 0;
  for (const int member : members) wanted += member;
  EXPECT_EQ(sum, wanted) << group.name();
  EXPECT_EQ(group.size(), static_cast<int>(members.size()));
  EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], own);
}

bool among(const std::vector<int>& members, int rank) { return std::ranges::find(members, rank) != members.end(); }

class Subgroup : public ::testing::TestWithParam<int> {
 protected:
  explicit Subgroup(int size = 4) {
    world.size = size;
    if (GetParam() > 1) world.host_of = [](int r) { return "host" + std::to_string(r % GetParam()); };
  }
  World world;
};
INSTANTIATE_TEST_SUITE_P(OnHosts, Subgroup, ::testing::Values(1, 2, 4));

TEST_P(Subgroup, FormsAmongItsMembersAlone) {
  run_ranks(world, [](Communicator& c) {
    int number = 0;
    for (const std::vector<int>& members :
         std::vector<std::vector<int>>{{0, 1}, {3, 1, 2}, {2, 0}, {3}, {0, 1, 2, 3}}) {
      const std::string id = "part " + std::to_string(number++);
      if (!among(members, c.rank())) continue;
      const Group group = form(c, members, id);
      expect_sum(*group, c.rank(), members);
    }
    c.run(Call{});
  });
}

TEST_P(Subgroup, FormsWhileCallsOfTheGroupAreUnderWay) {
  run_ranks(world, [](Communicator& c) {
    const std::vector<int> members{0, 1, 2};
    std::vector<float> data(300'000, 1.0F);
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = data.size();
    call.input = call.output = Blocks::single(data.data(), data.size() * sizeof(float));
    // Rank 3 makes this call when the others have formed: theirs waits until then.
    std::int32_t token = 0;
    if (c.rank() == 3) {
      c.recv(&token, 1, DataType::kInt32, 0, 7);
      c.run(call);
      return c.run(Call{});
    }
    std::int32_t from_any = -1;
    const WorkPtr awaited = c.rank() == 2 ? c.irecv(&from_any, 1, DataType::kInt32, kAnySource, 9) : nullptr;
    WorkPtr before, work;
    if (c.rank() != 1) work = c.submit(call);
    const Group group = form(c, members, "part");
    if (c.rank() == 1) work = c.submit(call);  // the others' has been queued all the time
    expect_sum(*group, c.rank(), members);
    if (c.rank() == 0) c.send(&token, 1, DataType::kInt32, 3, 7);
    work->wait();
    EXPECT_EQ(data.back(), 4.0F);
    if (c.rank() == 2) c.send(&token, 1, DataType::kInt32, 2, 9);
    if (awaited) awaited->wait();  // of any rank: before they leave
    c.run(Call{});
  });
}

TEST_P(Subgroup, ManyFormAtTheSameTime) {
  run_ranks(world, [](Communicator& c) {
    // Of each rank a thread for each group, which come as they will.
    std::vector<std::thread> threads;
    const std::vector<std::vector<int>> parts{{0, 1}, {1, 0}, {0, 1, 2, 3}, {2, 3}, {1, 2}, {3, 2, 1, 0}, {0, 3}};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!among(parts[i], c.rank())) continue;
      threads.emplace_back([&, i] {
        const Group group = form(c, parts[i], "part " + std::to_string(i));
        expect_sum(*group, c.rank(), parts[i]);
      });
    }
    c.run(Call{});
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(Subgroup, FormsInASubgroup) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() == 1) return;
    const Group part = form(c, {3, 2, 0}, "part");
    if (c.rank() == 0) return part->run(Call{});
    const Group pair = form(*part, {1, 0}, "pair");
    expect_sum(*pair, c.rank(), {2, 3});
    part->run(Call{});
  });
}

TEST_P(Subgroup, WhatKeepsARankFromJoiningIsTold) {
  run_ranks(world, [](Communicator& c) {
    const auto join = [&] {
      form_in(c, all_ranks(4), "part", [&]() -> CommunicatorOptions {
        if (c.rank() == 2) throw_error(ErrorKind::kInvalidArgument, "there is no such file");
        return c.options();
      });
    };
    const Error error = error_of(join);
    EXPECT_EQ(error.kind(), c.rank() == 2 ? ErrorKind::kInvalidArgument : ErrorKind::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("there is no such file"), std::string::npos) << error.what();
    if (c.rank() != 2) {
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
    c.run(Call{});
    expect_sum(*form(c, all_ranks(4), "next part"), c.rank(), all_ranks(4));
  });
}

TEST_P(Subgroup, DifferentSettingsAreNamed) {
  run_ranks(world, [](Communicator& c) {
    const auto join = [&] {
      form_in(c, all_ranks(4), "part", [&] {
        CommunicatorOptions options = c.options();
        if (c.rank() == 1) options.config.algorithm = "all_reduce=staged";
        return options;
      });
    };
    const Error error = error_of(join);
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_NE(std::string(error.what()).find("TUTTI_ALGORITHM"), std::string::npos) << error.what();
    c.run(Call{});
  });
}

TEST_P(Subgroup, RanksWithDifferentListsMeet) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() < 2) {
      const Error error = error_of([&] { form(c, c.rank() == 0 ? std::vector{0, 1} : std::vector{0, 1, 2}, "part"); });
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
      EXPECT_NE(std::string(error.what()).find("the number of ranks is 2 on rank 0 and 3 on rank 1"), std::string::npos)
          << error.what();
    }
    c.run(Call{});
  });
}

TEST_P(Subgroup, AnIdMayComeAgain) {
  run_ranks(world, [](Communicator& c) {
    for (const std::vector<int>& members : std::vector<std::vector<int>>{{0, 1, 2, 3}, {1, 0}, {0, 1}, {3, 1, 0}}) {
      if (among(members, c.rank())) expect_sum(*form(c, members, "part"), c.rank(), members);
    }
    c.run(Call{});
  });
}

TEST_P(Subgroup, TheEndOfItsTimeNamesWhoDidNotCome) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() == 0) {
      const Error error = error_of([&] { form(c, all_ranks(4), "part", std::chrono::milliseconds(300)); });
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      EXPECT_NE(std::string(error.what()).find("ranks 1, 2 and 3 did not come"), std::string::npos) << error.what();
    }
    c.run(Call{});
    if (c.rank() != 1) return c.run(Call{});
    // Who comes later hears why.
    const Error error = error_of([&] { form(c, all_ranks(4), "part"); });
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
    EXPECT_NE(std::string(error.what()).find("rank 0 cannot join"), std::string::npos) << error.what();
    c.run(Call{});
  });
}

TEST_P(Subgroup, TheGroupsOwnFailureEndsIt) {
  std::barrier<> told(4);  // who leaves earlier is missed by the others
  run_ranks(world, [&](Communicator& c) {
    if (c.rank() == 3) {
      c.abort("of a whim");
      EXPECT_FALSE(can_form_in(c, all_ranks(4)));
    } else {
      const Error error = error_of([&] { form(c, all_ranks(4), "part"); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 3"), std::string::npos) << error.what();
      EXPECT_FALSE(can_form_in(c, all_ranks(4)));
    }
    told.arrive_and_wait();
  });
}

// Only the ranks of its host see it, whose messages to others have ended with it: the group's end tells those.
TEST_P(Subgroup, TheFailureOfAStrangerEndsItOnAllHosts) {
  if (GetParam() == 4) GTEST_SKIP() << "no member waits for anybody of the failed rank's host";
  std::barrier<> told(4);
  run_ranks(world, [&](Communicator& c) {
    if (c.rank() == 2) c.abort("of a whim");
    if (c.rank() < 2) {
      const Error error = error_of([&] { form(c, {0, 1, 3}, "part"); });  // rank 3 does not come
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 2"), std::string::npos) << error.what();
    }
    told.arrive_and_wait();
  });
}

// A rank that knows of it goes elsewhere, and one of another host does not wait for it.
TEST_P(Subgroup, OneThatKnowsOfAFailureIsNotAwaited) {
  if (GetParam() == 4) GTEST_SKIP() << "rank 0 has nobody on its host";
  std::barrier<> told(4);
  run_ranks(world, [&](Communicator& c) {
    if (c.rank() == 2) c.abort("of a whim");
    told.arrive_and_wait();
    if (c.rank() == 0) {
      EXPECT_FALSE(can_form_in(c, {0, 1}));
      const std::string why = c.failure()->what();
      EXPECT_NE(why.find(": while a group in it was forming, rank 2 "), std::string::npos) << why;
      EXPECT_NE(why.find("gave up: it aborted the group: of a whim. Start"), std::string::npos) << why;
    }
    if (c.rank() == 1) {
      const Error error = error_of([&] { form(c, {0, 1}, "part"); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_FALSE(can_form_in(c, {0, 1}));
    }
    told.arrive_and_wait();
  });
}

// What a rank that gives up a forming could not send yet, behind messages that nobody takes, it takes back.
TEST_P(Subgroup, WhatARankTakesBackEndsNoGroup) {
  std::barrier<> over(4);
  run_ranks(world, [&](Communicator& c) {
    constexpr int kMessages = 400;
    std::vector<std::int8_t> block(16384, 1);
    std::vector<WorkPtr> sent;
    const auto fails = [&](std::chrono::milliseconds timeout) {
      return std::string(error_of([&] { form(c, all_ranks(4), "part", timeout); }).what()) != "";
    };
    if (c.rank() == 0) {
      for (int i = 0; i < kMessages; ++i) {
        sent.push_back(c.isend(block.data(), block.size(), DataType::kInt8, 2, static_cast<std::uint64_t>(i)));
      }
      EXPECT_TRUE(fails(std::chrono::milliseconds(100)));
    }
    over.arrive_and_wait();
    if (c.rank() != 0) {
      EXPECT_TRUE(fails(std::chrono::minutes(1)));
    }
    over.arrive_and_wait();
    for (int i = 0; c.rank() == 2 && i < kMessages; ++i) {
      c.recv(block.data(), block.size(), DataType::kInt8, 0, static_cast<std::uint64_t>(i));
    }
    for (const WorkPtr& work : sent) work->wait();
    c.run(Call{});
    EXPECT_FALSE(c.failure());
  });
}

TEST_P(Subgroup, AnAbortByAnotherThreadEndsIt) {
  std::barrier<> told(4);
  run_ranks(world, [&](Communicator& c) {
    if (c.rank() == 0) {
      std::thread other([&] { c.abort("of a whim"); });
      const Error error = error_of([&] { form(c, all_ranks(4), "part"); });
      EXPECT_NE(std::string(error.what()).find("of a whim"), std::string::npos) << error.what();
      other.join();
    }
    told.arrive_and_wait();
  });
}

TEST_P(Subgroup, OneThatHasLeftIsNamed) {
  std::barrier<> left(4);
  run_ranks(world, [&](Communicator& c) {
    if (c.rank() == 3) c.shutdown();
    left.arrive_and_wait();
    if (c.rank() != 3 && GetParam() == 1) {
      const Error error = error_of([&] { form(c, all_ranks(4), "part"); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost);
      EXPECT_NE(std::string(error.what()).find("rank 3"), std::string::npos) << error.what();
      EXPECT_TRUE(can_form_in(c, {0, 1, 2}));
    }
    left.arrive_and_wait();
  });
}

TEST(SubgroupArguments, AreChecked) {
  World world;
  run_ranks(world, [](Communicator& c) {
    for (const std::vector<int>& wrong :
         std::vector<std::vector<int>>{{}, {0, 0, 1}, {0, 1, 2}, {-1, 0, 1}, {1 - c.rank()}})
      EXPECT_EQ(error_of([&] { form(c, wrong, "part"); }).kind(), ErrorKind::kInvalidArgument);
    c.run(Call{});
  });
}

// More than send to each other.
class LargeSubgroup : public Subgroup {
 protected:
  LargeSubgroup() : Subgroup(20) {}
};
INSTANTIATE_TEST_SUITE_P(OnHosts, LargeSubgroup, ::testing::Values(1, 4));

TEST_P(LargeSubgroup, Forms) {
  run_ranks(world, [](Communicator& c) {
    std::vector<int> members = all_ranks(18);
    std::ranges::reverse(members);
    if (c.rank() < 18) {
      for (int round = 0; round < 3; ++round) {
        const Group group = form(c, members, "part " + std::to_string(round));
        expect_sum(*group, c.rank(), members);
      }
    }
    c.run(Call{});
  });
}

TEST_P(LargeSubgroup, IsToldOfAFailure) {
  run_ranks(world, [](Communicator& c) {
    const auto join = [&] {
      form_in(c, all_ranks(20), "part", [&]() -> CommunicatorOptions {
        if (c.rank() == 7) throw_error(ErrorKind::kInvalidArgument, "there is no such file");
        return c.options();
      });
    };
    const Error error = error_of(join);
    EXPECT_NE(std::string(error.what()).find("there is no such file"), std::string::npos) << error.what();
    c.run(Call{});
  });
}

TEST_P(LargeSubgroup, NamesWhoDidNotCome) {
  run_ranks(world, [](Communicator& c) {
    if (c.rank() != 7) {
      const Error error = error_of([&] { form(c, all_ranks(20), "part", std::chrono::milliseconds(500)); });
      const std::string text = error.what();
      EXPECT_TRUE(text.find("rank 7 did not come") != std::string::npos ||
                  text.find("rank 0 did not pass on in time") != std::string::npos)
          << text;
    }
    c.run(Call{});
  });
}

// Long values, and values that are passed on, in the order in which they were set.
TEST_P(LargeSubgroup, ItsStoreKeepsTheOrderOfEachRank) {
  run_ranks(world, [](Communicator& c) {
    GroupStore store(dynamic_cast<CommunicatorImpl&>(c).shared_from_this(), all_ranks(20), "store");
    const std::string own = std::to_string(c.rank());
    const std::string longer(100'000, static_cast<char>('a' + c.rank()));
    store.set("long " + own, longer);
    store.set("of all", own);
    store.add("sum", 1);
    store.set("done " + own, "");
    for (int r = 0; r < 20; ++r) {
      store.get("done " + std::to_string(r), std::chrono::minutes(1));
      EXPECT_EQ(store.get("long " + std::to_string(r), std::chrono::milliseconds(1)),
                std::string(100'000, static_cast<char>('a' + r)));
    }
    EXPECT_EQ(store.add("sum", 0), 20);
    EXPECT_EQ(error_of([&] { store.get("nothing", std::chrono::milliseconds(1)); }).kind(), ErrorKind::kTimeout);
    store.end(std::chrono::minutes(1));
    c.run(Call{});
  });
}

// What another rank of the group says that no rank of this version does.
TEST(Subgroups, WhatNoRankSaysIsAnError) {
  const auto said = [](std::uint8_t kind, const std::string& value) {
    ByteWriter out;
    out.u8(kind).u8(1).text("sum").text(value);
    return out.str();
  };
  constexpr std::uint8_t kAmount = 1, kBeyond = 3;
  const std::string most = std::to_string(std::numeric_limits<std::int64_t>::max());
  const std::vector<std::string> texts = {
      said(kAmount, ""),       said(kAmount, "1x"), said(kAmount, " 1"), said(kAmount, most + "0"),
      said(kAmount, "none"),   said(kAmount, most), said(kBeyond, "1"),  "",
      said(kAmount, "1") + "1"};
  run_ranks(World{}, [&](Communicator& group) {
    const auto own =
        std::dynamic_pointer_cast<CommunicatorImpl>(dynamic_cast<CommunicatorImpl&>(group).shared_from_this());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string id = "part " + std::to_string(i);
      if (group.rank() == 1) {
        MessageHead head(texts[i]);
        MessageOp op;
        post_forming(own->port(), op, true, 0, forming_tag(id, "store", "head"), &head, sizeof head);
        Deadline deadline = Deadline::after(group.options().timeout);
        EXPECT_TRUE(own->port().wait(op, deadline).ok());
      } else {
        GroupStore store(own, {0, 1}, id);
        store.add("sum", 1);
        const Error error = error_of([&] { store.get("never", group.options().timeout); });
        EXPECT_EQ(error.kind(), ErrorKind::kInternal) << texts[i];
        EXPECT_STREQ(error.what(), "rank 1 speaks another version of Tutti: install one version everywhere");
      }
    }
    group.run(Call{});  // goes on as if nothing had been
  });
}

}  // namespace
}  // namespace tutti::test
