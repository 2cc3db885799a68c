// Callbacks on the library's threads: they may communicate, wait, and drop the last reference to their group; and what
// becomes of a call for which no thread can be started.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/callback_parts.h"
#include "communicator/calls.h"
#include "communicator/thread_ranks.h"
#include "support/no_threads.h"

namespace tutti::test {
namespace {

TEST(Callbacks, MayMakeCollectivesWhileOthersAreQueued) {
  run_ranks({}, [](Communicator& c) {
    std::vector<float> first(4, 1), nested(4, 2), later(4, 3), awaited(4, 4);
    Gate gate;
    const WorkPtr work = c.submit(all_reduce(first), {}, gate.hold());
    std::promise<Error> ended;
    work->on_done([&](Work&) {
      ended.set_value(error_of([&] {
        c.run(all_reduce(nested));
        c.submit(all_reduce(awaited))->wait();
      }));
    });
    const WorkPtr last = c.submit(all_reduce(later));
    gate.open();
    EXPECT_STREQ(within_bound(ended.get_future()).what(), "");
    last->wait();
    EXPECT_EQ(nested.front(), 4);
    EXPECT_EQ(later.front(), 6);
    EXPECT_EQ(awaited.front(), 8);
  });
}

TEST(Callbacks, RunWhereNoSignalArrives) {
  std::promise<void> ready;
  run_ranks({}, [&](Communicator& c) {
    std::vector<float> x(4, 1);
    Gate gate;
    const WorkPtr work = c.submit(all_reduce(x), {}, gate.hold());
    std::promise<bool> queue;
    work->on_done([&](Work&) { queue.set_value(blocks_signals()); });
    gate.open();
    EXPECT_TRUE(within_bound(queue.get_future()));
    if (c.rank() == 1) {
      ready.get_future().wait();
      c.send(x.data(), x.size(), DataType::kFloat32, 0, 1);
      return;
    }
    const WorkPtr message = c.irecv(x.data(), x.size(), DataType::kFloat32, 1, 1);
    std::promise<bool> messages;
    message->on_done([&](Work&) { messages.set_value(blocks_signals()); });
    ready.set_value();
    EXPECT_TRUE(within_bound(messages.get_future()));
  });
}

// The destructor waits for the threads of the group, of which the callback's is one.
TEST(Callbacks, MayDropTheLastReference) {
  for (const bool message : {false, true}) {
    MemoryStore store;
    std::promise<void> ready;
    std::vector<std::thread> ranks;
    std::vector<std::string> errors(2);
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          CommunicatorOptions options;
          options.timeout = kBound;
          options.config.log_level = "error";
          auto comm = Communicator::create(store, "drop", rank, 2, options);
          std::vector<float> x(4, 1);
          if (rank == 1) {
            ready.get_future().wait();
            if (message) {
              comm->send(x.data(), x.size(), DataType::kFloat32, 0, 1);
            } else {
              comm->run(all_reduce(x));
            }
            return;
          }
          const WorkPtr work =
              message ? comm->irecv(x.data(), x.size(), DataType::kFloat32, 1, 1) : comm->submit(all_reduce(x));
          std::promise<void> dropped;
          work->on_done([&dropped, last = std::make_shared<std::shared_ptr<Communicator>>(std::move(comm))](Work&) {
            last->reset();
            dropped.set_value();
          });
          ready.set_value();
          within_bound(dropped.get_future());
        } catch (const std::exception& e) {
          errors[static_cast<std::size_t>(rank)] = e.what();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(errors, std::vector<std::string>(2)) << (message ? "of a message" : "of a collective");
  }
}

// Two messages that end in one pass, because both have come while the thread that drives them was in a callback, or
// because the group is aborted: a callback of the first may wait for the second, and for what its callbacks do.
TEST(Callbacks, OfAMessageMayWaitForOneThatEndsWithIt) {
  for (const bool aborted : {false, true}) {
    std::promise<void> in_callback, sent, posted;
    run_ranks({}, [&](Communicator& c) {
      std::vector<float> x(4, 1), y(4, 2), z(4, 3);
      if (c.rank() == 1) {
        const Error send = error_of([&] { c.send(z.data(), z.size(), DataType::kFloat32, 0, 3); });
        if (aborted) return within_bound(posted.get_future());  // by then, perhaps; of who has left nothing is received
        EXPECT_STREQ(send.what(), "");
        within_bound(in_callback.get_future());
        c.send(x.data(), x.size(), DataType::kFloat32, 0, 1);
        c.send(y.data(), y.size(), DataType::kFloat32, 0, 2);
        sent.set_value();
        return;
      }
      std::vector<float> a(4), b(4), first(4);
      const WorkPtr one = c.irecv(a.data(), a.size(), DataType::kFloat32, 1, 1);
      const WorkPtr two = c.irecv(b.data(), b.size(), DataType::kFloat32, 1, 2);
      std::promise<Error> waited;
      one->on_done([&](Work&) { waited.set_value(error_of([&] { two->wait(std::chrono::seconds(10)); })); });
      const WorkPtr before = c.irecv(first.data(), first.size(), DataType::kFloat32, 1, 3);
      before->on_done([&](Work&) {
        if (aborted) return;
        in_callback.set_value();
        within_bound(sent.get_future());
      });
      posted.set_value();
      // The message thread, not this one, runs the callbacks.
      if (aborted) c.abort("a test");
      const Error error = within_bound(waited.get_future());
      if (aborted) {
        EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
      } else {
        EXPECT_STREQ(error.what(), "");
        EXPECT_EQ(b, y);
      }
    });
  }
}

// What waits for the queue to be empty, on the thread that would empty it.
TEST(Callbacks, MayChangeTheAlgorithmsWhileOthersAreQueued) {
  run_ranks({}, [](Communicator& c) {
    std::vector<float> x(4, 1), y(4, 2);
    Gate gate;
    const WorkPtr one = c.submit(all_reduce(x), {}, gate.hold());
    std::promise<std::pair<Error, bool>> over;
    std::promise<WorkPtr> behind;
    one->on_done([&, two = behind.get_future().share()](Work&) {
      const Error error = error_of([&] { c.set_algorithms({}); });
      over.set_value({error, two.get()->done()});
    });
    behind.set_value(c.submit(all_reduce(y)));
    gate.open();
    const auto [error, done] = within_bound(over.get_future());
    EXPECT_STREQ(error.what(), "");
    EXPECT_TRUE(done);
    EXPECT_EQ(y.front(), 4);
  });
}

TEST(Callbacks, MayShutTheGroupDownWhileOthersAreQueued) {
  run_ranks({}, [](Communicator& c) {
    std::vector<float> x(4, 1), y(4, 2);
    Gate gate;
    const WorkPtr one = c.submit(all_reduce(x), {}, gate.hold());
    std::promise<void> over;
    one->on_done([&](Work&) {
      c.shutdown();
      over.set_value();
    });
    const WorkPtr two = c.submit(all_reduce(y));
    gate.open();
    within_bound(over.get_future());
    EXPECT_STREQ(error_of([&] { two->wait(); }).what(), "");
    EXPECT_EQ(y.front(), 4);
  });
}

// Another thread drops it while one waits for a message, in whichever place. Several groups at once: who waits holds
// its own for half a second.
TEST(Groups, EndWhileAThreadWaitsForAMessage) {
  const auto end_after = [](std::chrono::milliseconds pause) {
    MemoryStore store;
    CommunicatorOptions options;
    options.timeout = kBound;
    options.config.log_level = "error";
    std::promise<void> over;
    std::thread other([&] {
      const auto c = Communicator::create(store, "end", 1, 2, options);
      over.get_future().wait();
    });
    auto c = Communicator::create(store, "end", 0, 2, options);
    int got = 0;
    const WorkPtr work = c->irecv(&got, 1, DataType::kInt32, 1, 1);
    std::thread ender([&] {
      std::this_thread::sleep_for(pause);
      c.reset();
    });
    const Error error = error_of([&] { work->wait(); });
    EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
    ender.join();
    over.set_value();
    other.join();
  };
  for (int round = 0; round < 5; ++round) {
    std::vector<std::thread> groups;
    for (int i = 0; i < 6; ++i) groups.emplace_back([&, i] { end_after(std::chrono::milliseconds(i)); });
    for (std::thread& group : groups) group.join();
  }
}

// A callback drops it on a thread that waits for another message, because the one that runs callbacks is busy.
TEST(Groups, EndByACallbackOnAThreadThatWaitsForAMessage) {
  MemoryStore store;
  CommunicatorOptions options;
  options.timeout = kBound;
  options.config.log_level = "error";
  std::promise<void> awaited, held, leave, over;
  const auto ended = over.get_future().share();
  std::vector<std::thread> others;
  for (int rank = 1; rank < 3; ++rank) {
    others.emplace_back([&, rank] {
      const auto c = Communicator::create(store, "end", rank, 3, options);
      if (rank == 2) return ended.wait();
      const int x = 1;
      awaited.get_future().wait();
      c->send(&x, 1, DataType::kInt32, 0, 1);
      leave.get_future().wait();
    });
  }
  auto c = Communicator::create(store, "end", 0, 3, options);
  std::array<int, 3> got{};
  std::promise<void> release;
  const WorkPtr first = c->irecv(&got[0], 1, DataType::kInt32, 1, 1);
  first->on_done([&held, released = release.get_future().share()](Work&) {
    held.set_value();
    released.wait();
  });
  awaited.set_value();
  within_bound(held.get_future());
  const WorkPtr one = c->irecv(&got[1], 1, DataType::kInt32, 1, 2);
  const WorkPtr two = c->irecv(&got[2], 1, DataType::kInt32, 2, 3);
  std::thread::id dropper;
  one->on_done([&, last = std::make_shared<std::shared_ptr<Communicator>>(std::move(c))](Work&) {
    dropper = std::this_thread::get_id();
    release.set_value();
    last->reset();
  });
  leave.set_value();
  EXPECT_STRNE(error_of([&] { two->wait(); }).what(), "");
  EXPECT_EQ(dropper, std::this_thread::get_id());
  over.set_value();
  for (std::thread& other : others) other.join();
}

TEST(Callbacks, CallsWithoutAThreadFailAndLeaveTheGroupUsable) {
  MemoryStore store;
  CommunicatorOptions options;
  options.timeout = kBound;
  const auto comm = Communicator::create(store, "alone", 0, 1, options);
  std::vector<float> x(4, 1), y(4, 0);
  {
    const NoThreads none;
    const Error queued = error_of([&] { comm->submit(all_reduce(x))->wait(); });
    EXPECT_EQ(queued.kind(), ErrorKind::kExhausted) << queued.what();
    const Error message = error_of([&] { comm->irecv(y.data(), y.size(), DataType::kFloat32, 0, 1)->wait(); });
    EXPECT_EQ(message.kind(), ErrorKind::kExhausted) << message.what();
  }
  comm->run(all_reduce(x));
  comm->submit(all_reduce(x))->wait();
  const WorkPtr received = comm->irecv(y.data(), y.size(), DataType::kFloat32, 0, 1);
  comm->send(x.data(), x.size(), DataType::kFloat32, 0, 1);
  received->wait();
  EXPECT_EQ(y, x);
}

}  // namespace
}  // namespace tutti::test
