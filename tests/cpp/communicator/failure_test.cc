// What happens when ranks disagree, do not come, leave, abort or hand over nonsense.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "communicator/call_queue.h"
#include "communicator/calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

Call broadcast(std::vector<float>& x, int root) {
  Call call = all_reduce(x);
  call.collective = Collective::kBroadcast;
  call.op = ReduceOp::kSum;
  call.root = root;
  return call;
}

bool contains(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

// Ranks 0 ... n-2 make one call, the last another; all must raise, naming both, with outputs as they were.
void expect_mismatch(int n, std::size_t count, const std::function<Call(std::vector<float>&)>& one,
                     const std::function<Call(std::vector<float>&)>& other, const std::string& one_text,
                     const std::string& other_text) {
  World world;
  world.size = n;
  run_ranks(world, [&](Communicator& c) {
    std::vector<float> x(count + 8, 3.5F);
    const bool odd = c.rank() == n - 1;
    const Call call = odd ? other(x) : one(x);
    const Error error = error_of([&] { c.run(call); });
    EXPECT_EQ(x, std::vector<float>(count + 8, 3.5F)) << "output was written on rank " << c.rank();
    if (error.kind() == ErrorKind::kPeerLost) return;  // learnt it from a peer that was faster to compare
    ASSERT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
    EXPECT_TRUE(contains(error, one_text)) << error.what();
    EXPECT_TRUE(contains(error, other_text)) << error.what();
    // It stays broken, and says so.
    EXPECT_EQ(error_of([&] { c.run(call); }).kind(), ErrorKind::kMismatch);
  });
}

TEST(Failure, MismatchedCountOpAndCollectiveRaiseEverywhere) {
  for (const std::size_t count : {4UL, 1000UL, 100'000UL}) {
    const auto reduce = [count](std::vector<float>& x) {
      Call call = all_reduce(x);
      call.count = count;
      call.input.bytes = call.output.bytes = count * 4;
      return call;
    };
    for (const int n : {2, 3}) {
      expect_mismatch(
          n, count, reduce,
          [&](std::vector<float>& x) {
            Call call = reduce(x);
            call.count = count + 1;
            call.input.bytes = call.output.bytes = (count + 1) * 4;
            return call;
          },
          "[" + std::to_string(count) + "]", "[" + std::to_string(count + 1) + "]");
      expect_mismatch(
          n, count, reduce,
          [&](std::vector<float>& x) {
            Call call = reduce(x);
            call.op = ReduceOp::kMax;
            return call;
          },
          "sum", "max");
      expect_mismatch(
          n, count, reduce,
          [&](std::vector<float>& x) {
            Call call = reduce(x);
            call.dtype = DataType::kInt32;
            return call;
          },
          "f32", "i32");
    }
  }
}

// Rank 0 has three floats for rank 1, which has room for two.
TEST(Failure, BlocksOfOtherSizesAreRefusedBeforeTheyAreWritten) {
  run_ranks({}, [](Communicator& c) {
    std::vector<float> in(8, 1), out(8, -1);
    const auto list = [&](std::vector<float>& all, std::size_t of_0, std::size_t of_1, auto& pointers, auto& bytes) {
      pointers = {all.data(), all.data() + 4};
      bytes = {of_0 * sizeof(float), of_1 * sizeof(float)};
      return Blocks::list(pointers.data(), bytes.data());
    };
    std::array<void*, 2> from{}, to{};
    std::array<std::size_t, 2> given{}, room{};
    Call call;
    call.collective = Collective::kAllToAll;
    call.dtype = DataType::kFloat32;
    call.uneven = true;
    call.input = c.rank() == 0 ? list(in, 4, 3, from, given) : list(in, 1, 4, from, given);
    call.output = c.rank() == 0 ? list(out, 4, 1, to, room) : list(out, 2, 4, to, room);
    const Error error = error_of([&] { c.run(call); });
    if (c.rank() == 1) {
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
      EXPECT_TRUE(contains(error, "with blocks of other sizes")) << error.what();
      EXPECT_EQ(out, std::vector<float>(8, -1));
    } else {
      EXPECT_NE(error.kind(), ErrorKind::kInternal) << error.what();
    }
  });
}

TEST(Failure, TwoRootsAreFoundAtTheNextCall) {
  run_ranks({}, [](Communicator& c) {
    std::vector<float> x(4, static_cast<float>(c.rank()));
    // Each believes to be the root, so neither has anything to wait for.
    c.run(broadcast(x, c.rank()));
    std::vector<float> y(4, 1);
    const Error error = error_of([&] { c.run(all_reduce(y)); });
    ASSERT_TRUE(error.kind() == ErrorKind::kMismatch || error.kind() == ErrorKind::kPeerLost) << error.what();
    EXPECT_EQ(y, std::vector<float>(4, 1));
    if (error.kind() == ErrorKind::kMismatch) {
      EXPECT_TRUE(contains(error, "broadcast #1")) << error.what();
    }
  });
}

TEST(Failure, AMissingRankIsNamedAtTheDeadline) {
  World world;
  world.size = 3;
  std::atomic<int> raised{0};
  run_ranks(world, [&](Communicator& c) {
    c.set_timeout(milliseconds(300));  // not for the forming of the group, which a busy machine delays
    if (c.rank() == 2) {
      // Stays in the group, makes no call, until the others have raised.
      while (raised.load() < 2) std::this_thread::yield();
      return;
    }
    std::vector<float> x(10, 1);
    const Error error = error_of([&] { c.run(all_reduce(x)); });
    EXPECT_TRUE(error.kind() == ErrorKind::kTimeout || error.kind() == ErrorKind::kPeerLost) << error.what();
    EXPECT_TRUE(contains(error, "rank 2")) << error.what();
    EXPECT_TRUE(contains(error, "all_reduce #1 f32[10] sum")) << error.what();
    EXPECT_EQ(x, std::vector<float>(10, 1));
    ++raised;
  });
}

TEST(Failure, ARankThatLeavesIsNamed) {
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& c) {
    std::vector<float> x(10, 1);
    c.run(all_reduce(x));
    if (c.rank() == 1) return;  // its communicator is destroyed
    const Error error = error_of([&] { c.run(all_reduce(x)); });
    ASSERT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
    EXPECT_TRUE(contains(error, "rank 1")) << error.what();
  });
}

TEST(Failure, AbortEndsAWaitAndIsToldToThePeers) {
  std::atomic<bool> aborted{false};
  run_ranks({}, [&](Communicator& c) {
    std::vector<float> x(10, 1);
    if (c.rank() == 0) {
      const WorkPtr work = c.submit(all_reduce(x));
      c.abort("enough");
      aborted.store(true, std::memory_order_release);  // release: pairs with the acquire of rank 1
      const Error error = error_of([&] {
        work->wait();  // completes if the peer's data come before the abort is seen
        c.run(all_reduce(x));
      });
      EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
      EXPECT_TRUE(contains(error, "enough")) << error.what();
    } else {
      // Not before: both calls would complete.
      while (!aborted.load(std::memory_order_acquire)) std::this_thread::yield();
      const Error error = error_of([&] {
        for (int i = 0; i < 2; ++i) c.run(all_reduce(x));
      });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
    }
  });
}

// Nobody else is in a call: no peer's failure ends the wait, nor does a deadline.
TEST(Failure, AbortEndsAWaitByItself) {
  std::atomic<bool> over{false};
  World world;
  world.timeout = std::chrono::hours(1);
  run_ranks(world, [&](Communicator& c) {
    std::vector<float> x(10, 1);
    if (c.rank() == 0) {
      const WorkPtr work = c.submit(all_reduce(x));
      while (c.flight_record().find("\"started\"") == std::string::npos) std::this_thread::yield();
      c.abort("enough");
      const Error error = error_of([&] { work->wait(); });
      EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
      over.store(true, std::memory_order_release);  // release: pairs with the acquire of the others
    } else {
      while (!over.load(std::memory_order_acquire)) std::this_thread::yield();
    }
  });
}

// A call that comes while another thread ends the queue: nobody would run it.
TEST(CallQueue, TakesNoneAfterItsEnd) {
  struct Runner final : CallRunner {
    void run_queued(const Call&, std::chrono::milliseconds) override { ++runs; }
    int runs = 0;
  } runner;
  CallQueue queue(runner);
  queue.push({}, {}, nullptr)->wait();
  queue.stop();
  EXPECT_EQ(error_of([&] { queue.push({}, {}, nullptr); }).kind(), ErrorKind::kAborted);
  EXPECT_EQ(runner.runs, 1);
}

// Threads that ask why a call failed share no exception: what one does to its own, or when it lets go of it, is nothing
// to the others. Here the queue's thread lets go of the call last: the thread sanitizer watches the reading before.
TEST(CallQueue, EveryWaiterRaisesAnExceptionOfItsOwn) {
  struct Runner final : CallRunner {
    void run_queued(const Call&, std::chrono::milliseconds) override { throw_error(ErrorKind::kPeerLost, "why"); }
  } runner;
  CallQueue queue(runner);
  WorkPtr work = queue.push({}, {}, nullptr);
  work->on_done([](Work&) { std::this_thread::sleep_for(milliseconds(20)); });
  std::vector<std::exception_ptr> raised;
  for (int i = 0; i < 2; ++i) {
    try {
      work->wait();
    } catch (...) {
      raised.push_back(std::current_exception());
    }
    raised.push_back(work->error());
  }
  work.reset();
  std::set<const void*> objects, texts;
  for (const std::exception_ptr& error : raised) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kPeerLost);
      EXPECT_STREQ(e.what(), "why");
      objects.insert(&e);
      texts.insert(e.what());
    }
  }
  EXPECT_EQ(objects.size(), 4U);
  EXPECT_EQ(texts.size(), 4U);
}

TEST(Failure, RefusedCallsLeaveTheGroupUsable) {
  run_ranks({}, [](Communicator& c) {
    std::vector<float> x(10, 1);
    const std::uint64_t before = c.sequence();
    EXPECT_EQ(error_of([&] { c.run(broadcast(x, 7)); }).kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(error_of([&] { c.run(all_reduce(x, ReduceOp::kBand)); }).kind(), ErrorKind::kInvalidArgument);
    Call integers = all_reduce(x, ReduceOp::kPremulSum);
    integers.dtype = DataType::kInt32;
    EXPECT_EQ(error_of([&] { c.run(integers); }).kind(), ErrorKind::kInvalidArgument);
    Call null = all_reduce(x);
    null.input.base = nullptr;
    EXPECT_EQ(error_of([&] { c.run(null); }).kind(), ErrorKind::kInvalidArgument);
    Call premultiplied = all_reduce(x, ReduceOp::kPremulSum);
    premultiplied.device_factor = x.data();  // no GPU reads it here
    EXPECT_EQ(error_of([&] { c.run(premultiplied); }).kind(), ErrorKind::kInvalidArgument);
    Call overlapping = all_reduce(x);
    overlapping.may_overlap = true;
    EXPECT_EQ(error_of([&] { c.run(overlapping); }).kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(error_of([&] { c.send(x.data(), 1, DataType::kFloat32, 9, 0); }).kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(c.sequence(), before);
    c.run(all_reduce(x));
    EXPECT_EQ(x, std::vector<float>(10, 2));
  });
}

TEST(Failure, SurvivorsShrink) {
  MemoryStore store;
  std::vector<std::thread> threads;
  std::vector<int> sizes(4, 0);
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      CommunicatorOptions options;
      options.timeout = milliseconds(5000);
      options.config.log_level = "error";
      auto c = Communicator::create(store, "whole", r, 4, options);
      std::vector<float> x(10, 1);
      c->run(all_reduce(x));
      if (r == 2) return;
      EXPECT_NE(std::string(error_of([&] { c->run(all_reduce(x)); }).what()), "");
      std::vector<int> members;
      auto smaller = c->shrink(store, "smaller", milliseconds(1500), &members);
      EXPECT_EQ(members, (std::vector<int>{0, 1, 3}));
      std::vector<float> y(10, 1);
      smaller->run(all_reduce(y));
      EXPECT_EQ(y, std::vector<float>(10, 3));
      sizes[static_cast<std::size_t>(r)] = smaller->size();
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(sizes, (std::vector<int>{3, 3, 0, 3}));
}

TEST(Failure, MonitoredBarrierNamesWhoIsMissingAndLeavesTheGroupUsable) {
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& c) {
    c.monitored_barrier(milliseconds(5000), false);
    if (c.rank() != 1) {
      const Error error = error_of([&] { c.monitored_barrier(milliseconds(600), true); });
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout);
      if (c.rank() == 0) {
        EXPECT_TRUE(contains(error, "Rank 1 failed to pass monitoredBarrier")) << error.what();
      }
    }
    std::vector<float> x(10, 1);
    c.run(all_reduce(x));
    EXPECT_EQ(x, std::vector<float>(10, 3));
  });
}

// However small: its part was there before it gave up.
TEST(Failure, ACallThatAPeerHasGivenUpIsNotCompleted) {
  for (const bool barrier : {true, false}) {
    World world;
    world.timeout = milliseconds(300);
    std::promise<void> given_up, ended;
    run_ranks(world, [&](Communicator& c) {
      std::vector<float> x(4, 1);
      const Call call = barrier ? Call{} : all_reduce(x);
      if (c.rank() == 0) given_up.get_future().wait();
      const Error error = error_of([&] { c.run(call); });
      EXPECT_EQ(error.kind(), c.rank() == 0 ? ErrorKind::kPeerLost : ErrorKind::kTimeout) << error.what();
      if (c.rank() == 1) {
        given_up.set_value();
        ended.get_future().wait();
        return;
      }
      const Error send = error_of([&] { c.send(x.data(), 1, DataType::kFloat32, 1, 1); });
      EXPECT_EQ(send.kind(), ErrorKind::kPeerLost) << send.what();
      ended.set_value();
    });
  }
}

// What is small would be taken by the ring.
TEST(Failure, ASendToARankThatHasFailedOrLeftRaises) {
  for (const bool leaves : {true, false}) {
    World world;
    std::promise<void> gone, ended;
    run_ranks(world, [&](Communicator& c) {
      if (c.rank() == 1) {
        leaves ? c.shutdown() : c.abort("on purpose");
        gone.set_value();
        ended.get_future().wait();
        return;
      }
      gone.get_future().wait();
      const int x = 1;
      const Error error = error_of([&] { c.send(&x, 1, DataType::kInt32, 1, 1); });
      EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
      EXPECT_STRNE(error_of([&] { c.isend(&x, 1, DataType::kInt32, 1, 1); }).what(), "");
      ended.set_value();
    });
  }
}

// Not who is well, and waits likewise.
TEST(Failure, AMonitoredBarrierNamesWhoHasFailed) {
  for (const bool here : {false, true}) {
    World world;
    world.size = 3;
    std::promise<void> over;
    const auto ended = over.get_future().share();
    run_ranks(world, [&](Communicator& c) {
      std::vector<float> x(4, 1);
      c.run(all_reduce(x));
      if (c.rank() == (here ? 0 : 2)) c.abort("on purpose");
      if (c.rank() != 0) return ended.wait();
      const Error error = error_of([&] { c.monitored_barrier(milliseconds(20'000), true); });
      EXPECT_EQ(error.kind(), here ? ErrorKind::kAborted : ErrorKind::kPeerLost) << error.what();
      EXPECT_TRUE(contains(error, "on purpose")) << error.what();
      EXPECT_FALSE(contains(error, "failed to pass")) << error.what();
      over.set_value();
    });
  }
}

// Rank 1 hears of rank 2's abort from rank 0 first, whose own failure is that it has heard of it.
TEST(Failure, WhoFailedIsNamedAndNotWhoHeardOfIt) {
  World world;
  world.size = 3;
  std::promise<void> aborted, heard;
  run_ranks(world, [&](Communicator& c) {
    std::vector<float> x(4, 1);
    c.run(all_reduce(x));
    if (c.rank() == 2) {
      c.abort("on purpose");
      aborted.set_value();
      return;
    }
    (c.rank() == 0 ? aborted : heard).get_future().wait();
    const Error error = error_of([&] { c.run(all_reduce(x)); });
    EXPECT_TRUE(contains(error, "rank 2 ")) << error.what();
    EXPECT_TRUE(contains(error, "gave up: it aborted the group: on purpose")) << error.what();
    if (c.rank() == 0) heard.set_value();
  });
}

}  // namespace
}  // namespace tutti::test
