// Callbacks of messages and handlers of signals in the course of a collective of their group: what may wait for it in
// vain raises there.
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

#include "base/interruption.h"
#include "communicator/callback_parts.h"
#include "communicator/calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

// Two messages of rank 1, on another host. The thread of messages is held in the callback of the first until release();
// so the second ends on rank 0 on the thread that is in a collective there, where `in_callback` runs.
class HeldMessages {
 public:
  struct Signals {
    std::promise<void> awaited, held, sent, called;
  };

  HeldMessages(Communicator& c, Signals& signals, std::function<void()> in_callback)
      : first_(c.irecv(&got_[0], 1, DataType::kInt32, 1, 1)) {
    // What a callback uses it holds: a work is done before its callback has returned.
    first_->on_done([released = released_, &signals](Work&) {
      signals.held.set_value();
      released.wait();
    });
    second_ = c.irecv(&got_[1], 1, DataType::kInt32, 1, 2);
    second_->on_done([called = called_, &signals, act = std::move(in_callback)](Work&) {
      act();
      called->set_value(std::this_thread::get_id());
      signals.called.set_value();
    });
    signals.awaited.set_value();
    within_bound(signals.sent.get_future());
  }
  ~HeldMessages() { release(); }

  // What rank 1 does: it comes to no collective before the callback has run in it.
  static void send(Communicator& c, Signals& signals) {
    const int x = 1;
    within_bound(signals.awaited.get_future());
    c.send(&x, 1, DataType::kInt32, 0, 1);
    within_bound(signals.held.get_future());
    c.send(&x, 1, DataType::kInt32, 0, 2);
    signals.sent.set_value();
    within_bound(signals.called.get_future());
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
      EXPECT_NE(std::string(waited->what()).find("behind which the call waited for stands"), std::string::npos)
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

// The call would be run by the queue's thread behind the collective that waits here.
TEST(Callbacks, OfAMessageMayNotAwaitAQueuedCallWithinACollective) {
  HeldMessages::Signals signals;
  run_ranks(two_hosts(), [&](Communicator& c) {
    std::vector<float> outer(4, 1), inner(4, 2);
    std::optional<HeldMessages> messages;
    std::optional<Error> waited;
    WorkPtr queued;
    if (c.rank() == 0) {
      messages.emplace(c, signals, [&] {
        queued = c.submit(all_reduce(inner));
        waited = error_of([&] { queued->wait(); });
      });
    } else {
      HeldMessages::send(c, signals);
    }
    c.run(all_reduce(outer));
    if (c.rank() == 0) {
      EXPECT_EQ(messages->thread_of_callback(), std::this_thread::get_id());
      ASSERT_TRUE(waited);
      EXPECT_EQ(waited->kind(), ErrorKind::kUnsupported) << waited->what();
      messages->release();
    } else {
      queued = c.submit(all_reduce(inner));
    }
    queued->wait();
    EXPECT_EQ(inner.front(), 4);
  });
}

// The collective is a callback's on the queue's own thread: the call would take the number of the one behind it.
TEST(Callbacks, OfAMessageMayNotAwaitAQueuedCallWithinACallbacksCollective) {
  HeldMessages::Signals signals;
  run_ranks(two_hosts(), [&](Communicator& c) {
    const float mine = c.rank() == 0 ? 10 : 20;
    std::vector<float> first(4, 1), nested(4, 1), next(4, mine), later(4, 300);
    std::optional<HeldMessages> messages;
    std::optional<Error> waited;
    WorkPtr second;
    if (c.rank() == 0) {
      Gate gate;
      const WorkPtr one = c.submit(all_reduce(first), {}, gate.hold());
      std::promise<Error> ran;
      one->on_done([&](Work&) {
        messages.emplace(c, signals, [&] {
          second = c.submit(all_reduce(next));
          waited = error_of([&] { second->wait(); });
        });
        ran.set_value(error_of([&] { c.run(all_reduce(nested)); }));
      });
      gate.open();
      EXPECT_STREQ(within_bound(ran.get_future()).what(), "");
      ASSERT_TRUE(waited);
      EXPECT_EQ(waited->kind(), ErrorKind::kUnsupported) << waited->what();
      messages->release();
    } else {
      c.run(all_reduce(first));
      HeldMessages::send(c, signals);
      c.run(all_reduce(nested));
      second = c.submit(all_reduce(next));
    }
    second->wait();
    c.run(all_reduce(later));
    EXPECT_EQ(next.front(), 30);
    EXPECT_EQ(later.front(), 600);
  });
}

// On one host. Rank 0 is the thread that runs handlers.
TEST(Handlers, MayNotAwaitAQueuedCallWithinACollective) {
  struct Handler {
    std::shared_ptr<Communicator> group;
    std::vector<float> inner{2, 2};
    WorkPtr queued;
    std::optional<Error> waited;
    std::promise<void> ran;
  };
  static Handler* handler = nullptr;  // a handler of a signal is given nothing
  Handler here;
  handler = &here;
  MemoryStore store;
  CommunicatorOptions options;
  options.timeout = kBound;
  options.config.log_level = "error";
  std::string error;
  std::thread other([&] {
    try {
      const auto c = Communicator::create(store, "handlers", 1, 2, options);
      std::vector<float> outer(2, 1), inner(2, 2);
      within_bound(here.ran.get_future());
      c->run(all_reduce(outer));
      c->run(all_reduce(inner));
    } catch (const std::exception& e) {
      error = e.what();
    }
  });
  here.group = Communicator::create(store, "handlers", 0, 2, options);
  const auto run_handlers = [](std::string&) noexcept -> std::exception_ptr {
    if (handler->queued == nullptr) {
      handler->queued = handler->group->submit(all_reduce(handler->inner));
      handler->waited = error_of([] { handler->queued->wait(); });
      handler->ran.set_value();
    }
    return nullptr;
  };
  std::vector<float> outer(2, 1);
  interruptible(run_handlers, {}, [&] { here.group->run(all_reduce(outer)); });
  ASSERT_TRUE(here.waited);
  EXPECT_EQ(here.waited->kind(), ErrorKind::kUnsupported) << here.waited->what();
  here.queued->wait();
  EXPECT_EQ(outer.front(), 2);
  EXPECT_EQ(here.inner.front(), 4);
  other.join();
  EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace tutti::test
