// Plans whose ranks lie on several hosts, told apart by TUTTI_HOST_ID: shared memory within, TCP between.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <thread>

#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "executor/executor_plans.h"
#include "executor/host_plans.h"
#include "executor/program/inflow.h"
#include "plan/structure.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

using plan::Hosts;

struct HostsSubject {
  const char* name;
  Collective collective;
  plan::Plan (*make)(const Hosts& hosts);
};

plan::Plan hosts_loop(const Hosts& hosts) { return plan::hosts_looped_all_reduce(hosts, 65536); }
plan::Plan in_place_ring(const Hosts& hosts) {
  plan::Plan made = plan::hosts_ring_all_reduce(hosts);
  made.in_place = true;
  return made;
}

// Beyond a segment. The thread sanitizer keeps many times the memory that ranks map, so there it is a smaller one.
constexpr std::size_t kLargest = kThreadSanitizer ? 200'007 : 1'200'007;

const HostsSubject kHostsSubjects[] = {
    {"gather", Collective::kAllGather, plan::hosts_all_gather},
    {"gather_in_place", Collective::kAllGather, plan::hosts_in_place_all_gather},
    {"ring", Collective::kAllReduce, plan::hosts_ring_all_reduce},
    {"ring_in_place", Collective::kAllReduce, in_place_ring},
    {"loop", Collective::kAllReduce, hosts_loop},
    {"packets", Collective::kAllReduce, plan::hosts_packet_all_reduce},
    {"packet_ring", Collective::kAllGather, plan::hosts_packet_ring_all_gather},
};

World world_of(const Hosts& hosts, const std::string& plan_path) {
  World world;
  world.size = hosts.ranks;
  world.host_of = [per_host = hosts.per_host](int rank) { return "host" + std::to_string(rank / per_host); };
  world.plan_path_of = [plan_path](int) { return plan_path; };
  return world;
}

class BetweenHosts : public testing::TestWithParam<std::tuple<Hosts, HostsSubject>> {};

TEST_P(BetweenHosts, ComputesItsCollective) {
  const auto& [hosts, subject] = GetParam();
  PlanFolder folder;
  const std::string file = folder.add(subject.name, subject.make(hosts));
  run_ranks(world_of(hosts, file), [&](Communicator& c) {
    int salt = 0;
    // Zero, one, around a chunk and an eager message, beyond a segment.
    for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 17, 1001, 2049, 65'600, kLargest}) {
      for (const bool in_place : {false, true}) {
        const Variant v{salt % 3 == 0, in_place, ReduceOp::kSum, -1};
        run_once(c, subject.collective, count, v, ++salt);
      }
    }
    if (subject.collective == Collective::kAllReduce) {
      run_once(c, subject.collective, 7001, {false, false, ReduceOp::kAvg, -1}, ++salt);
    }
    for (const MetricsRow& row : c.metrics().rows) EXPECT_EQ(row.algorithm, std::string("plan:") + subject.name);
  });
}

INSTANTIATE_TEST_SUITE_P(Plans, BetweenHosts,
                         testing::Combine(testing::Values(Hosts{2, 1}, Hosts{3, 1}, Hosts{4, 2}, Hosts{4, 3}),
                                          testing::ValuesIn(kHostsSubjects)),
                         [](const auto& test) {
                           const Hosts& hosts = std::get<0>(test.param);
                           return std::string(std::get<1>(test.param).name) + "_" + std::to_string(hosts.ranks) +
                                  "_by_" + std::to_string(hosts.per_host);
                         });

// What reaches between hosts by memory does not run; the library's own algorithm does, and it can be asked why.
TEST(PlansOfOneHost, GiveWayBetweenHosts) {
  const Hosts hosts{4, 2};
  PlanFolder folder;
  folder.add("a_memory", plan::ring_all_reduce(4));
  folder.add("b_switch", plan::switch_all_reduce(4));
  folder.add("c_ports", plan::hosts_ring_all_reduce(hosts));
  run_ranks(world_of(hosts, folder.path()), [](Communicator& c) {
    run_once(c, Collective::kAllReduce, 1000, {}, 1);
    EXPECT_TRUE(ran(c, "plan:c_ports"));
    float data[4] = {};
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = 4;
    call.input = call.output = Blocks::single(data, sizeof data);
    const std::string why = c.explain(call);
    EXPECT_NE(why.find("plan:a_memory: not here: rank 0 reaches rank 3 of another host by its memory channel 0; "),
              std::string::npos)
        << why;
    EXPECT_NE(why.find("plan:b_switch: not here: rank 0 reaches rank 2 of another host by "), std::string::npos) << why;
    EXPECT_NE(why.find("-> plan:c_ports"), std::string::npos) << why;
  });
}

// Several blocks that signal over one port channel have no order that the receiver could know.
TEST(PlansOfOneHost, SharedPortsGiveWayBetweenHosts) {
  const Hosts hosts{2, 1};
  plan::Plan shared = plan::hosts_all_gather(hosts);
  // Rank 0's second block puts its scratch once more, to where nobody looks.
  for (plan::Rank& rank : shared.ranks) rank.chunks[2] = 2;
  plan::ThreadBlock second = shared.ranks[0].blocks[0];
  std::erase_if(second.operations, [](const plan::Operation& op) {
    return op.channel != plan::ChannelKind::kPort || op.kind == plan::OpKind::kWait || op.kind == plan::OpKind::kSignal;
  });
  const plan::Links links(shared);
  shared.ranks[0].blocks.push_back(second);
  ASSERT_FALSE(second.operations.empty());
  const std::string fault = executor::crossing_fault(shared, links, RankMap({0, 1}));
  EXPECT_NE(fault.find("port channel 0 of rank 0 to rank 1 of another host signals and is used by several thread"),
            std::string::npos)
      << fault;
  EXPECT_EQ(executor::crossing_fault(shared, links, RankMap({0, 0})), "");
}

// Who finds the difference gives up, and that may reach a third rank before it has compared: it then names who gave up.
TEST(PlansBetweenHosts, AMismatchIsNamedAndRaisesEverywhere) {
  for (const Hosts& hosts : {Hosts{2, 1}, Hosts{4, 2}, Hosts{4, 3}}) {
    for (const int odd : {0, hosts.ranks - 1}) {
      PlanFolder folder;
      const std::string file = folder.add("ring", plan::hosts_ring_all_reduce(hosts));
      std::atomic<int> named{0};
      std::barrier all_agreed(hosts.ranks);
      run_ranks(world_of(hosts, file), [&](Communicator& c) {
        for (int i = 0; i < 3; ++i) run_once(c, Collective::kAllReduce, 1000, {}, i);
        // A rank whose data are still on their way to it may be told first that another has given up the next call.
        all_agreed.arrive_and_wait();
        const std::size_t count = c.rank() == odd ? 500 : 1000;
        const Error error = error_of([&] { run_once(c, Collective::kAllReduce, count, {}, 7); });
        EXPECT_TRUE(error.kind() == ErrorKind::kMismatch || error.kind() == ErrorKind::kPeerLost) << error.what();
        if (error.kind() == ErrorKind::kMismatch) {
          ++named;
          EXPECT_NE(std::string(error.what()).find("[500]"), std::string::npos) << error.what();
          EXPECT_NE(std::string(error.what()).find("[1000]"), std::string::npos) << error.what();
        }
      });
      EXPECT_GE(named.load(), 1);
    }
  }
}

TEST(PlansBetweenHosts, AMissingRankIsNamed) {
  for (const Hosts& hosts : {Hosts{2, 1}, Hosts{4, 2}}) {
    PlanFolder folder;
    const std::string file = folder.add("ring", plan::hosts_ring_all_reduce(hosts));
    std::atomic<int> raised{0};
    run_ranks(world_of(hosts, file), [&](Communicator& c) {
      run_once(c, Collective::kAllReduce, 1000, {}, 1);
      if (c.rank() == 1) c.set_timeout(std::chrono::milliseconds(400));  // the others hear of it
      if (c.rank() == 0) {  // does not come, and does not leave before the others have given up
        while (raised.load() < c.size() - 1) std::this_thread::yield();
        return;
      }
      const Error error = error_of([&] { run_once(c, Collective::kAllReduce, 1000, {}, 2); });
      ++raised;
      EXPECT_TRUE(error.kind() == ErrorKind::kTimeout || error.kind() == ErrorKind::kPeerLost) << error.what();
      if (c.rank() != 1) return;
      EXPECT_EQ(error.kind(), ErrorKind::kTimeout) << error.what();
      const std::string text = error.what();
      // On its host the rank is known not to have announced the call.
      const char* named = hosts.per_host > 1 ? "rank 0 has not arrived in this call" : "waiting for rank 0";
      EXPECT_NE(text.find(named), std::string::npos) << text;
      EXPECT_NE(text.find("plan \"ring\": rank 1 waits in thread block 0"), std::string::npos) << text;
    });
  }
}

TEST(PlansBetweenHosts, AbortWakesWhoWaits) {
  const Hosts hosts{4, 2};
  PlanFolder folder;
  const std::string file = folder.add("ring", plan::hosts_ring_all_reduce(hosts));
  std::atomic<int> waiting{0};
  run_ranks(world_of(hosts, file), [&](Communicator& c) {
    run_once(c, Collective::kAllReduce, 1000, {}, 1);
    if (c.rank() == 3) {
      while (waiting.load() < 3) std::this_thread::yield();
      c.abort("enough");
      return;
    }
    ++waiting;
    const Error error = error_of([&] { run_once(c, Collective::kAllReduce, 1000, {}, 2); });
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
  });
}

}  // namespace
}  // namespace tutti::test
