// Calls that wait for what a thread makes: their order, failure, and an early end.
#include "communicator/deferred_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>

#include "communicator/refused_memory.h"
#include "support/no_threads.h"
#include "tutti/error.h"

namespace tutti::test {
namespace {

// What has happened to calls: "run 3", "fail 3: why", "announce 3".
class Log {
 public:
  void add(std::string entry) {
    const std::lock_guard<std::mutex> lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  std::vector<std::string> entries() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> entries_;
};

class Logged : public DeferredCall {
 public:
  Logged(Log& log, int number, std::function<void()> announced = {})
      : log_(log), number_(std::to_string(number)), announced_(std::move(announced)) {}
  void run() noexcept override { log_.add("run " + number_); }
  void fail(const std::exception_ptr& error) noexcept override {
    try {
      std::rethrow_exception(error);
    } catch (const std::runtime_error& e) {
      log_.add("fail " + number_ + ": " + e.what());
    }
  }
  void wake() noexcept override { log_.add("wake " + number_); }
  void announce() noexcept override {
    log_.add("announce " + number_);
    if (announced_) announced_();
  }

 private:
  Log& log_;
  const std::string number_;
  const std::function<void()> announced_;
};

// As a caller does it: queued, or run here.
void issue(DeferredCalls& calls, Log& log, int number) {
  DeferredCalls::Call call = std::make_unique<Logged>(log, number);
  if (!calls.ready() && calls.queue(call)) return;
  call->run();
}

std::vector<std::string> runs_of(const Log& log) {
  std::vector<std::string> runs = log.entries();
  std::erase_if(runs,
                [](const std::string& entry) { return entry.starts_with("announce") || entry.starts_with("wake"); });
  return runs;
}

std::vector<std::string> runs_up_to(int count) {
  std::vector<std::string> runs;
  for (int i = 0; i < count; ++i) runs.push_back("run " + std::to_string(i));
  return runs;
}

TEST(DeferredCalls, IssuingWaitsForNothing) {
  std::promise<void> made;
  Log log;
  {
    DeferredCalls calls([&] { made.get_future().wait(); });
    for (int i = 0; i < 5; ++i) {
      DeferredCalls::Call call = std::make_unique<Logged>(log, i);
      EXPECT_FALSE(calls.ready());
      EXPECT_TRUE(calls.queue(call));
      EXPECT_EQ(call, nullptr);
    }
    EXPECT_TRUE(log.entries().empty());
    made.set_value();
  }
  EXPECT_EQ(runs_of(log), runs_up_to(5));
}

TEST(DeferredCalls, NoSignalComesToTheirThread) {
  std::promise<bool> blocks;
  const DeferredCalls calls([&] { blocks.set_value(test::blocks_signals()); });
  EXPECT_TRUE(blocks.get_future().get());
}

TEST(DeferredCalls, AThreadThatCannotStartIsAnError) {
  const test::NoThreads none;
  try {
    const DeferredCalls calls([] {});
    FAIL() << "it started";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kExhausted);
    EXPECT_NE(std::string(error.what()).find("starting the thread that connects"), std::string::npos) << error.what();
  }
}

TEST(DeferredCalls, RunInTheOrderOfIssueAcrossTheEndOfMaking) {
  for (int round = 0; round < 200; ++round) {
    constexpr int kCalls = 300;
    std::promise<void> made;
    Log log;
    {
      DeferredCalls calls([&] { made.get_future().wait(); });
      for (int i = 0; i < kCalls; ++i) {
        if (i == round) made.set_value();
        issue(calls, log, i);
      }
    }
    ASSERT_EQ(runs_of(log), runs_up_to(kCalls)) << "made at call " << round;
  }
}

TEST(DeferredCalls, WhatMakingWroteIsSeenByThoseWhoFindItReady) {
  int written = 0;
  DeferredCalls calls([&] { written = 7; });
  while (!calls.ready()) std::this_thread::yield();
  EXPECT_EQ(written, 7);
  Log log;
  DeferredCalls::Call call = std::make_unique<Logged>(log, 0);
  EXPECT_FALSE(calls.queue(call));
  EXPECT_NE(call, nullptr);
}

class Waking final : public DeferredCall {
 public:
  explicit Waking(std::function<void()> woken) : woken_(std::move(woken)) {}
  void run() noexcept override {}
  void fail(const std::exception_ptr& /*error*/) noexcept override {}
  void wake() noexcept override { woken_(); }
  void announce() noexcept override {}

 private:
  const std::function<void()> woken_;
};

TEST(DeferredCalls, WhoWaitedForTheLastCallFindsThemReady) {
  std::promise<void> made;
  std::promise<bool> ready;
  DeferredCalls calls([&] { made.get_future().wait(); });
  for (int i = 0; i < 3; ++i) {
    DeferredCalls::Call call = std::make_unique<Waking>([&, i] {
      if (i == 2) ready.set_value(calls.ready());
    });
    ASSERT_TRUE(calls.queue(call));
  }
  made.set_value();
  EXPECT_TRUE(ready.get_future().get());
}

TEST(DeferredCalls, AFailureIsThatOfEveryCall) {
  std::promise<void> made;
  std::promise<void> announced;
  int tries = 0;
  Log log;
  DeferredCalls calls([&] {
    ++tries;
    made.get_future().wait();
    throw std::runtime_error("nobody came");
  });
  DeferredCalls::Call first = std::make_unique<Logged>(log, 0);
  ASSERT_TRUE(calls.queue(first));
  DeferredCalls::Call last = std::make_unique<Logged>(log, 1, [&] { announced.set_value(); });
  ASSERT_TRUE(calls.queue(last));
  made.set_value();
  announced.get_future().wait();
  EXPECT_EQ(log.entries(), (std::vector<std::string>{"fail 0: nobody came", "wake 0", "fail 1: nobody came", "wake 1",
                                                     "announce 0", "announce 1"}));
  for (int i = 2; i < 4; ++i) {
    DeferredCalls::Call late = std::make_unique<Logged>(log, i);
    EXPECT_THROW(calls.ready(), std::runtime_error);
    EXPECT_THROW(calls.queue(late), std::runtime_error);
  }
  EXPECT_EQ(tries, 1);
}

// Neither are calls lost nor does the process end for want of memory in their thread.
TEST(DeferredCalls, TheirThreadTakesNoMemory) {
  std::promise<void> queued;
  std::optional<test::Refusal> refusal;
  std::atomic<int> woken{0};
  {
    DeferredCalls calls([&] {
      queued.get_future().wait();
      test::count_me();
      refusal.emplace(test::Of::kThisThread, test::Which::kAllFromThere, 1);
    });
    for (int i = 0; i < 100; ++i) {
      // relaxed: read when the thread has ended
      DeferredCalls::Call call = std::make_unique<Waking>([&] { woken.fetch_add(1, std::memory_order_relaxed); });
      ASSERT_TRUE(calls.queue(call));
    }
    queued.set_value();
  }
  EXPECT_EQ(test::Refusal::refused(), 0);
  refusal.reset();
  EXPECT_EQ(woken.load(std::memory_order_relaxed), 100);
}

TEST(DeferredCalls, AnnouncingMayIssueAndWait) {
  std::promise<void> made;
  std::promise<void> announced;
  Log log;
  DeferredCalls calls([&] { made.get_future().wait(); });
  DeferredCalls::Call call = std::make_unique<Logged>(log, 0, [&] {
    issue(calls, log, 1);  // runs here: nothing is queued any more
    announced.set_value();
  });
  ASSERT_TRUE(calls.queue(call));
  made.set_value();
  announced.get_future().wait();
  EXPECT_EQ(log.entries(), (std::vector<std::string>{"run 0", "wake 0", "announce 0", "run 1"}));
}

TEST(DeferredCalls, DestructionFailsWhatNeverCame) {
  Log log;
  std::promise<void> destroyed;
  auto calls = std::make_unique<DeferredCalls>([&] {
    destroyed.get_future().wait();
    throw std::runtime_error("destroyed");
  });
  DeferredCalls::Call call = std::make_unique<Logged>(log, 0);
  ASSERT_TRUE(calls->queue(call));
  destroyed.set_value();
  calls.reset();
  EXPECT_EQ(log.entries(), (std::vector<std::string>{"fail 0: destroyed", "wake 0", "announce 0"}));
}

TEST(DeferredCalls, AnnouncingMayDestroyThem) {
  Log log;
  std::promise<void> made;
  std::promise<void> announced;
  std::future<void> over = announced.get_future();
  auto calls = std::make_unique<DeferredCalls>([&] { made.get_future().wait(); });
  // Destroyed with the last call: when the thread has nothing left to do.
  std::shared_ptr<void> end(nullptr, [&](void*) { announced.set_value(); });
  DeferredCalls::Call call = std::make_unique<Logged>(log, 0, [&calls, end = std::move(end)] { calls.reset(); });
  ASSERT_TRUE(calls->queue(call));
  made.set_value();
  over.wait();
  EXPECT_EQ(calls, nullptr);
  EXPECT_EQ(log.entries(), (std::vector<std::string>{"run 0", "wake 0", "announce 0"}));
}

TEST(DeferredCalls, ManyThreadsIssue) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 200;
  std::promise<void> made;
  Log log;
  {
    DeferredCalls calls([&] { made.get_future().wait(); });
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCalls; ++i) {
          if (t == 0 && i == kCalls / 2) made.set_value();
          issue(calls, log, t * kCalls + i);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Each thread's own calls in its order.
  std::vector<int> next(kThreads, 0);
  for (const std::string& entry : runs_of(log)) {
    const int number = std::stoi(entry.substr(4));
    EXPECT_EQ(number % kCalls, next[static_cast<std::size_t>(number / kCalls)]++) << entry;
  }
  EXPECT_EQ(next, std::vector<int>(kThreads, kCalls));
}

}  // namespace
}  // namespace tutti::test
