// What wakes a rank that sleeps for messages. Ranks are processes: those of one process share their connections, and
// with them what wakes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/exchange.h"
#include "bootstrap/store_process.h"
#include "communicator/plan_calls.h"
#include "communicator/two_levels.h"
#include "plan/plan_builder.h"
#include "support/child_process.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

const std::string kHosts = "aabc";
constexpr int kRanks = 4, kRoot = 3;

// From rank 3 to 0, from there in shared memory to 1, and on to 2, which first says that it has come.
plan::Plan chain() {
  using plan::kI, plan::kO, plan::local;
  plan::PlanBuilder builder(plan::PlanCollective::kBroadcast, kRanks, 1, 1, 0);
  builder.plan.root = kRoot;
  const auto first = builder.at(0), second = builder.at(1), last = builder.at(2), root = builder.at(kRoot);
  root.copy(local(kI, 0), local(kO, 0)).port_wait(0).nop();
  root.put_port(plan::OpKind::kPutWithSignal, 0, local(kI, 0), kO, 0).flush(0);
  first.port_signal(kRoot).wait(1, 0, plan::OpKind::kRelaxedWait).port_wait(kRoot).nop();
  first.put(1, local(kO, 0), kO, 0).nop().signal(1);
  second.signal(0, 0, plan::OpKind::kRelaxedSignal).wait(0).port_wait(2).nop();
  second.put_port(plan::OpKind::kPutWithSignal, 2, local(kO, 0), kO, 0).flush(2);
  last.port_signal(1).port_wait(1);
  return builder.plan;
}

bool broadcasts(Communicator& c, float value) {
  FloatCall made(Collective::kBroadcast, 1000, 1, kRoot);
  std::fill(made.in.begin(), made.in.end(), c.rank() == kRoot ? value : 0);
  c.run(made.call);
  return std::count(made.in.begin(), made.in.end(), value) == 1000;
}

// Rank 1 sleeps for rank 0's signal and for a message of rank 2. The signal comes long after it has fallen asleep, and
// the message long after the signal: nothing else can wake it, and a rank that is not woken looks up by itself and
// counts that, by which its process ends otherwise.
TEST(SleptSignals, OfTheHostReachWhoAwaitsMessages) {
  PlanFolder folder;
  const std::string file = folder.add("chain", chain());
  StoreProcess stores;
  Gate signalled;
  std::vector<std::unique_ptr<ChildProcess>> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.push_back(std::make_unique<ChildProcess>([&, r] {
      try {
        const auto store = stores.connect();
        CommunicatorOptions options;
        options.timeout = milliseconds(120'000);
        options.config.log_level = "error";
        options.config.plan_path = file;
        options.config.host_id = kHosts.substr(static_cast<std::size_t>(r), 1);
        const auto c = Communicator::create(*store, "test", r, kRanks, options);
        const auto all_are_here = [&](const char* where) {
          exchange(*store, "test", where, r, kRanks, "", options.timeout);
        };
        bool right = broadcasts(*c, 1);
        all_are_here("ready");
        if (r == kRoot) std::this_thread::sleep_for(milliseconds(200));
        if (r == 2) right = signalled.wait() && right;
        if (r == 2) std::this_thread::sleep_for(milliseconds(300));  // then rank 1 has looked up
        right = broadcasts(*c, 2) && right;
        if (r == 0) signalled.open();
        all_are_here("through");  // who leaves wakes its host
        return right && calls_by(*c, Collective::kBroadcast, "plan:chain") == 2 ? 0 : 1;
      } catch (const std::exception& e) {
        std::fprintf(stderr, "rank %d: %s\n", r, e.what());
        return 2;
      }
    }));
  }
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(ranks[static_cast<std::size_t>(r)]->join(), 0) << "rank " << r;
}

}  // namespace
}  // namespace tutti::test
