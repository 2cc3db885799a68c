// Times that make no sense are refused before anything is sent, at every entry that takes one.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/ranks.h"
#include "communicator/thread_ranks.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// Of one rank: the others are told, and wait for nobody.
TEST(Timeouts, AGroupHasOneOfMoreThanNothing) {
  for (const milliseconds wrong : {milliseconds(0), milliseconds(-1), milliseconds::min()}) {
    for (const int odd : {0, 1}) {
      MemoryStore store;
      const auto errors = run_threads(2, [&](int rank) {
        CommunicatorOptions options;
        options.name = "odd";
        options.timeout = rank == odd ? wrong : std::chrono::minutes(10);  // the test's watchdog comes first
        Communicator::create(store, "odd", rank, 2, options);
      });
      const std::string text =
          "group 'odd': the timeout of a group must be more than 0, not " + std::to_string(wrong.count()) + " ms";
      EXPECT_EQ(errors[static_cast<std::size_t>(odd)], text);
      EXPECT_NE(errors[static_cast<std::size_t>(1 - odd)].find("cannot join"), std::string::npos);
      EXPECT_NE(errors[static_cast<std::size_t>(1 - odd)].find(text), std::string::npos);
    }
  }
  CommunicatorOptions options;
  options.timeout = {};
  const GroupId id = make_group_id(Config{}, "localhost");
  EXPECT_EQ(error_of([&] { join_group(id, 0, 2, options); }).kind(), ErrorKind::kInvalidArgument);
}

// Who polls looks for no deadline: not for longer than a moment, whatever TUTTI_SPINS says.
TEST(Timeouts, AreKeptByRanksThatPollForLong) {
  World world;
  world.timeout = milliseconds(300);
  world.config_of = [](int) {
    Config config;
    config.spins = 1'000'000'000;
    return config;
  };
  std::latch over(2);
  run_ranks(world, [&](Communicator& c) {
    if (c.rank() == 0) EXPECT_EQ(error_of([&] { c.run(Call{}); }).kind(), ErrorKind::kTimeout);
    over.arrive_and_wait();
  });
}

// Its time runs also while another thread's call is under way, and so does that of who gives algorithms.
TEST(Timeouts, OneThatWaitsForAnotherThreadsCallIsKept) {
  std::latch tried(2);
  run_ranks({}, [&](Communicator& c) {
    if (c.rank() == 1) {
      tried.arrive_and_wait();
      c.run(Call{});
      return;
    }
    std::thread first([&c] { c.run(Call{}); });
    while (c.sequence() == 0) std::this_thread::yield();
    c.set_timeout(milliseconds(50));
    for (const std::function<void()>& late : {std::function<void()>([&c] { c.run(Call{}, milliseconds(100)); }),
                                              std::function<void()>([&c] { c.set_algorithms({}); })}) {
      const Error error = error_of(late);
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
      EXPECT_NE(std::string(error.what()).find("another thread's call of the group has not ended"), std::string::npos)
          << error.what();
    }
    tried.arrive_and_wait();
    first.join();
    EXPECT_EQ(c.sequence(), 1U);
  });
}

TEST(Timeouts, ACallHasNoNegativeOne) {
  run_ranks({}, [](Communicator& c) {
    const milliseconds wrong(-1);
    std::vector<int> x(4, c.rank());
    const int peer = 1 - c.rank();
    const auto type = DataType::kInt32;
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = type;
    call.count = x.size();
    call.input = call.output = Blocks::single(x.data(), x.size() * sizeof(int));
    const WorkPtr collective = c.submit(call);
    const WorkPtr message = c.rank() == 0 ? c.isend(x.data(), 0, type, peer, 1) : c.irecv(x.data(), 0, type, peer, 1);
    MemoryStore store;
    const std::vector<std::function<void()>> entries = {
        [&] { c.run(call, wrong); },
        [&] { c.submit(call, wrong); },
        [&] { c.send(x.data(), 4, type, peer, 0, wrong); },
        [&] { c.recv(x.data(), 4, type, peer, 0, wrong); },
        [&] { c.isend(x.data(), 4, type, peer, 0, wrong); },
        [&] { c.irecv(x.data(), 4, type, peer, 0, wrong); },
        [&] { c.monitored_barrier(wrong, false); },
        [&] { c.shrink(store, "smaller", wrong, nullptr); },
        [&] { c.set_timeout(wrong); },
        [&] { c.set_timeout({}); },
        [&] { collective->wait(wrong); },
        [&] { message->wait(wrong); },
    };
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Error error = error_of(entries[i]);
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << i;
      EXPECT_NE(std::string(error.what()).find("timeout"), std::string::npos) << error.what();
    }
    collective->wait();
    message->wait();
    EXPECT_EQ(c.timeout(), World{}.timeout);
    EXPECT_EQ(c.sequence(), 1U);
    c.run(call);
    EXPECT_EQ(x, std::vector<int>(4, 2));
  });
}

}  // namespace
}  // namespace tutti::test
