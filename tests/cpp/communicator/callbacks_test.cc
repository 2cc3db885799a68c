// Callbacks on the library's threads: they may communicate, wait, and drop the last reference to their group; and what
// becomes of a call for which no thread can be started.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "communicator/calls.h"
#include "communicator/thread_ranks.h"
#include "support/no_threads.h"

namespace tutti::test {
namespace {

constexpr auto kBound = std::chrono::seconds(60);

// A call that holds it does not complete before it is opened: callbacks can be attached in time.
class Gate {
 public:
  std::shared_ptr<void> hold() {
    return {this, [opened = opened_](void*) { opened.wait(); }};
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

template <typename T>
T within_bound(std::future<T> future) {
  if (future.wait_for(kBound) != std::future_status::ready) throw std::runtime_error("it hangs");
  return future.get();
}

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
    std::promise<void> in_callback, sent;
    run_ranks({}, [&](Communicator& c) {
      std::vector<float> x(4, 1), y(4, 2), z(4, 3);
      if (c.rank() == 1) {
        c.send(z.data(), z.size(), DataType::kFloat32, 0, 3);
        if (aborted) return;
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
