// Groups whose calls on GPUs are NCCL's: how what goes wrong ends.
#include <atomic>
#include <optional>

#include "communicator/nccl_groups.h"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

// Makes an all-reduce on a rank that the others leave alone, and expects its end.
void expect_end(Rank& rank, ErrorKind kind, const std::string& words, std::chrono::milliseconds timeout = {}) {
  std::vector<float> data{1};
  Call call = call_of(Collective::kAllReduce, 1);
  call.input = call.output = Blocks::single(data.data(), 4);
  for (int i = 0; i < 2; ++i) {  // and each later call
    try {
      rank.group->run(call, rank.work->own_stream(), timeout);
      rank.group->synchronize(rank.work->own_stream());
      ADD_FAILURE() << "it has ended well";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
    EXPECT_TRUE(rank.group->failure().has_value());
  }
}

TEST(OverNcclFailures, ACallThatOthersDoNotMakeEndsByItsOwnTime) {
  Groups(2).run([](Rank& rank) {
    if (rank.rank == 0)
      expect_end(rank, ErrorKind::kTimeout, "all_reduce #1 f32[1] sum over NCCL has not ended", 100ms);
  });
  EXPECT_GE(fake_faults().aborts, 1);
}

TEST(OverNcclFailures, ACallThatWaitsInsideNcclEndsByItsTime) {
  Groups groups(2);
  fake_faults().waits_inside = 0;
  groups.run([](Rank& rank) {
    if (rank.rank != 0) return;
    std::atomic<bool> over{false};
    std::thread watch([&] {  // the process's
      while (!over) {
        rank.group->look();
        std::this_thread::sleep_for(10ms);
      }
    });
    expect_end(rank, ErrorKind::kTimeout, "over NCCL was not begun", 100ms);
    over = true;
    watch.join();
  });
}

TEST(OverNcclFailures, AnAbortEndsWhatWaits) {
  Groups(2).run([](Rank& rank) {
    if (rank.rank != 0) return;
    std::thread aborts([&] {
      std::this_thread::sleep_for(50ms);
      rank.group->abort("enough");
    });
    expect_end(rank, ErrorKind::kAborted, "group 'far' on rank 0: aborted: enough");
    aborts.join();
  });
}

std::function<void()> at_group_start;

// Else the thread's later calls, other groups' too, would be of it, and would never begin.
TEST(OverNcclFailures, AnAbortLeavesNoThreadInsideAGroupOfNcclCalls) {
  Groups groups(2);
  groups.library(0).ncclGroupStart = [] {
    const ncclResult_t begun = fake_nccl().ncclGroupStart();
    at_group_start();
    return begun;
  };
  groups.run([](Rank& rank) {
    if (rank.rank != 0) return;
    std::thread aborts;
    at_group_start = [&] {
      aborts = std::thread([&] { rank.group->abort("enough"); });
      while (!rank.group->failure()) std::this_thread::yield();
      std::this_thread::sleep_for(50ms);  // NCCL's part begins to end meanwhile, most likely, and waits for this call
    };
    std::vector<float> data{1};
    const std::vector<DeviceMessage> messages{{true, data.data(), 4, 1, 0}};
    try {
      rank.group->exchange(messages, rank.work->own_stream(), {});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
    }
    EXPECT_EQ(fake_depth(), 0);
    aborts.join();
    rank.work->wait(rank.work->own_stream());  // which may have the message
  });
}

// A bootstrap that finds a rank lost once it is told so.
class Doomed final : public Bootstrap {
 public:
  Doomed(BootstrapPtr real, std::atomic<bool>& lost)
      : Bootstrap(real->id(), real->rank(), real->size()), real_(std::move(real)), lost_(lost) {}
  std::vector<std::string> all_gather(std::string_view topic, std::string_view blob,
                                      std::chrono::milliseconds timeout) override {
    return real_->all_gather(topic, blob, timeout);
  }
  void watch() override {
    EXPECT_TRUE(has_formed());
    if (lost_) throw_error(ErrorKind::kPeerLost, "rank 1 died or cannot be reached any more");
  }
  void tell(const std::exception& error) noexcept override { real_->tell(error); }

 private:
  const BootstrapPtr real_;
  std::atomic<bool>& lost_;
};

TEST(OverNcclFailures, ARankOfAnotherHostThatIsLostIsFoundWhileACallWaits) {
  std::atomic<bool> lost{false};
  Groups groups(2);
  groups.wrap = [&](BootstrapPtr real) { return std::make_shared<Doomed>(std::move(real), lost); };
  groups.run([&](Rank& rank) {
    std::vector<float> data{1};
    Call call = call_of(Collective::kAllReduce, 1);
    call.input = call.output = Blocks::single(data.data(), 4);
    rank.run(call);
    if (rank.rank != 0) return;
    std::thread dies([&] {
      std::this_thread::sleep_for(400ms);  // it is being looked for by then
      lost = true;
    });
    expect_end(rank, ErrorKind::kPeerLost,
               "group 'far' on rank 0: all_reduce #2 f32[1] sum over NCCL: rank 1 died or cannot be reached any more");
    dies.join();
  });
}

// NCCL notices it first, but names nobody.
TEST(OverNcclFailures, ALostRankIsNamedThoughNcclSpeaksFirst) {
  std::atomic<bool> lost{false};
  Groups groups(2);
  groups.wrap = [&](BootstrapPtr real) { return std::make_shared<Doomed>(std::move(real), lost); };
  groups.run([&](Rank& rank) {
    if (rank.rank != 0) return;
    lost = true;
    fake_faults().asynchronous = ncclRemoteError;
    expect_end(rank, ErrorKind::kPeerLost, "over NCCL: rank 1 died or cannot be reached any more");
  });
}

// What is late is found by the destructor itself: NCCL is told to end it, and not that nothing is under way.
TEST(OverNcclFailures, AGroupThatGoesWithALateCallIsAborted) {
  Groups(2).run([](Rank& rank) {
    if (rank.rank != 0) return;
    std::vector<float> data{1};
    Call call = call_of(Collective::kAllReduce, 1);
    call.input = call.output = Blocks::single(data.data(), 4);
    rank.group->run(call, rank.work->own_stream(), 50ms);
    rank.group.reset();
    rank.work->wait(rank.work->own_stream());
  });
  EXPECT_EQ(fake_faults().aborts, 1);
  EXPECT_EQ(fake_faults().ends, 1);
}

// The others may have made it, and this rank's next call would meet theirs.
TEST(OverNcclFailures, ACallThatNcclRefusesOnOneRankEndsTheGroup) {
  Groups groups(2);
  fake_faults().refuses = 0;
  groups.run([](Rank& rank) {
    if (rank.rank == 0) expect_end(rank, ErrorKind::kInvalidArgument, "ncclAllReduce: a fake's error");
  });
}

TEST(OverNcclFailures, WhatNcclSaysLaterEndsTheGroup) {
  Groups(2).run([](Rank& rank) {
    if (rank.rank != 0) return;
    rank.group->look();
    EXPECT_FALSE(rank.group->failure().has_value());
    fake_faults().asynchronous = ncclRemoteError;
    expect_end(rank, ErrorKind::kPeerLost, "a fake's error (a fake's last error)");
  });
}

TEST(OverNcclFailures, ARankWithoutNcclIsNamedByAll) {
  Groups groups(3);
  groups.library(1).problem = "no file of that name";
  for (const std::string& error : groups.errors([](Rank&) {})) {
    EXPECT_NE(error.find("it has two hosts, so its calls on GPUs are NCCL's, and rank 1 cannot use it: no file of that "
                         "name. Install NCCL, or name its file in TUTTI_NCCL_LIB_PATH"),
              std::string::npos)
        << error;
  }
}

TEST(OverNcclFailures, DifferentVersionsAreNamedByAll) {
  Groups groups(2);
  groups.library(1).version = "2.98.0";
  for (const std::string& error : groups.errors([](Rank&) {})) {
    EXPECT_NE(error.find("rank 0 has NCCL 2.99.1, rank 1 has 2.98.0"), std::string::npos) << error;
  }
}

TEST(OverNcclFailures, ARankThatCannotBeginEndsTheOthers) {
  Groups groups(2);
  fake_faults().fails_to_begin = 1;
  const auto errors = groups.errors([](Rank&) {});
  EXPECT_NE(errors[1].find("ncclCommInitRank: a fake's error"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0].find("ncclCommInitRank: a fake's error"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace tutti::test
