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

// Two messages of rank 1, on another host. The thread of messages is held in the callback of the first until release();
// so the second ends on rank 0 on the thread that is in a collective there, where `in_callback` runs.
class HeldMessages {
 public:
  struct Signals {
    std::promise<void> awaited, held, sent;
  };

  HeldMessages(Communicator& c, Signals& signals, std::function<void()> in_callback)
      : first_(c.irecv(&got_[0], 1, DataType::kInt32, 1, 1)) {
    // What a callback uses it holds: a work is done before its callback has returned.
    first_->on_done([released = released_, &signals](Work&) {
      signals.held.set_value();
      released.wait();
    });
    second_ = c.irecv(&got_[1], 1, DataType::kInt32, 1, 2);
    second_->on_done([called = called_, act = std::move(in_callback)](Work&) {
      act();
      called->set_value(std::this_thread::get_id());
    });
    signals.awaited.set_value();
    within_bound(signals.sent.get_future());
  }
  ~HeldMessages() { release(); }

  // What rank 1 does.
  static void send(Communicator& c, Signals& signals) {
    const int x = 1;
    within_bound(signals.awaited.get_future());
    c.send(&x, 1, DataType::kInt32, 0, 1);
    within_bound(signals.held.get_future());
    c.send(&x, 1, DataType::kInt32, 0, 2);
    signals.sent.set_value();
  }
  std::thread::id thread_of_callback() { return within_bound(called_->get_future()); }
  void release() {
    if (std::exchange(holds_, false)) release_.set_value();
    first_->wait();
    second_->wait();
  }

 private:
  std::array<int, 2> got_{};
  bool holds_ = true;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  const std::shared_ptr<std::promise<std::thread::id>> called_ = std::make_shared<std::promise<std::thread::id>>();
  WorkPtr first_, second_;
};

World two_hosts() {
  World world;
  world.host_of = [](int rank) { return "host " + std::to_string(rank); };
  return world;
}

// On the thread of the program, in a collective that has met the message on its way: another one would wait for it.
TEST(Callbacks, OfAMessageMayNotMakeACollectiveWithinOne) {
  HeldMessages::Signals signals;
  run_ranks(two_hosts(), [&](Communicator& c) {
    std::vector<float> outer(4, 1), inner(4, 2), later(4, 3);
    std::optional<HeldMessages> messages;
    std::vector<Error> errors;
    WorkPtr queued;
    if (c.rank() == 0) {
      messages.emplace(c, signals, [&] {
        errors.push_back(error_of([&] { c.run(all_reduce(inner)); }));
        errors.push_back(error_of([&] { c.set_algorithms({}); }));
        queued = c.submit(all_reduce(inner));  // as the text says
      });
    } else {
      HeldMessages::send(c, signals);
    }
    c.run(all_reduce(outer));
    if (c.rank() == 0) {
      EXPECT_EQ(messages->thread_of_callback(), std::this_thread::get_id());
      ASSERT_EQ(errors.size(), 2U);
      for (const Error& error : errors) {
        EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
        EXPECT_NE(std::string(error.what()).find("in the course of another collective of this group"),
                  std::string::npos)
            << error.what();
      }
      messages->release();
    } else {
      queued = c.submit(all_reduce(inner));
    }
    queued->wait();
    c.run(all_reduce(later));
    EXPECT_EQ(outer.front(), 2);
    EXPECT_EQ(inner.front(), 4);
    EXPECT_EQ(later.front(), 6);
  });
}

// On the queue's own thread, which would run the call that is waited for.
TEST(Callbacks, OfAMessageMayNotAwaitAQueuedCallOnTheQueuesThread) {
  HeldMessages::Signals signals;
  run_ranks(two_hosts(), [&](Communicator& c) {
    std::vector<float> outer(4, 1), next(4, 2), later(4, 3);
    std::optional<HeldMessages> messages;
    std::optional<Error> waited, made;
    WorkPtr second;
    if (c.rank() == 0) {
      messages.emplace(c, signals, [&] {
        second = c.submit(all_reduce(next));
        waited = error_of([&] { second->wait(); });
        made = error_of([&] { c.run(all_reduce(later)); });
      });
    } else {
      HeldMessages::send(c, signals);
    }
    const WorkPtr first = c.submit(all_reduce(outer));
    if (c.rank() == 0) {
      EXPECT_NE(messages->thread_of_callback(), std::this_thread::get_id());
      for (const auto& error : {waited, made}) {
        ASSERT_TRUE(error);
        EXPECT_EQ(error->kind(), ErrorKind::kUnsupported) << error->what();
      }
      EXPECT_NE(std::string(waited->what()).find("on the thread that would run the call waited for"), std::string::npos)
          << waited->what();
      messages->release();
    } else {
      second = c.submit(all_reduce(next));
    }
    first->wait();
    second->wait();
    c.run(all_reduce(later));
    EXPECT_EQ(outer.front(), 2);
    EXPECT_EQ(next.front(), 4);
    EXPECT_EQ(later.front(), 6);
  });
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
