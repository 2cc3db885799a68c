// Each setting, different on one rank: the group works and its results are right, or every rank is told which setting
// differs and how. Never a wrong result, never a rank left waiting.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "communicator/thread_ranks.h"
#include "plan/plan_builder.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"
#include "tutti/config.h"

namespace tutti::test {
namespace {

Call make(Collective collective, std::vector<float>& in, std::vector<float>& out, std::size_t blocks = 1) {
  Call call;
  call.collective = collective;
  call.dtype = DataType::kFloat32;
  call.count = in.size() / blocks;
  call.input = Blocks::single(in.data(), call.count * sizeof(float));
  call.output = Blocks::single(out.data(), out.size() / blocks * sizeof(float));
  return call;
}

// Calls of all sizes, each with its result; kept small enough for the slots, past them, and past the staging area.
void expect_right_results(Communicator& c) {
  const auto n = static_cast<std::size_t>(c.size());
  for (const std::size_t count : {1UL, 20UL, 5'000UL, 300'000UL}) {
    std::vector<float> x(count, static_cast<float>(c.rank() + 1)), y(count, -1);
    c.run(make(Collective::kAllReduce, x, y));
    ASSERT_EQ(y, std::vector<float>(count, static_cast<float>(n * (n + 1) / 2)));
    std::vector<float> z(count, static_cast<float>(c.rank()));
    Call broadcast = make(Collective::kBroadcast, z, z);
    broadcast.root = 1;
    c.run(broadcast);
    ASSERT_EQ(z, std::vector<float>(count, 1));
    std::vector<float> parts(count * n, static_cast<float>(c.rank())), got(count * n, -1);
    c.run(make(Collective::kAllToAll, parts, got, n));
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<float>(i / count));
  }
  float token = static_cast<float>(c.rank());
  if (c.rank() == 0) c.send(&token, 1, DataType::kFloat32, 1, 0, {});
  if (c.rank() == 1) c.recv(&token, 1, DataType::kFloat32, 0, 0, {});
  ASSERT_EQ(token, c.rank() < 2 ? 0.0F : 2.0F);
}

struct Odd {
  std::string value;      // on rank 1
  std::string others;     // on ranks 0 and 2; unset when empty
  std::string said = {};  // what all ranks are told; nothing where the group works
};

TEST(Settings, EachMayDifferOrIsNamedToAllRanks) {
  const TemporaryFolder folder;
  const std::string plan = folder.write("plan.json", plan::write_plan(plan::ring_all_reduce(3)));
  // The values are there to be different and to matter, where anything can.
  const std::multimap<std::string, Odd> settings = {
      {"TUTTI_LOG_LEVEL", {"error", "warning"}},
      {"TUTTI_HOST_ID", {"elsewhere", ""}},
      {"TUTTI_SOCKET_IFNAME", {"lo", ""}},
      {"TUTTI_STAGE_BYTES", {"64K", "", "(chosen) on ranks 0 and 2 and 65536 on rank 1"}},
      {"TUTTI_STAGE_BYTES", {"64K", "256K", "262144 on ranks 0 and 2 and 65536 on rank 1"}},
      {"TUTTI_ARENA_BYTES", {"64M", ""}},
      {"TUTTI_SHARED_THRESHOLD", {"1", "1M"}},
      {"TUTTI_SHARED_ALLOCATOR", {"1", "0"}},
      {"TUTTI_CROSS_MEMORY", {"0", "1"}},
      {"TUTTI_SPINS", {"0", "100"}},
      {"TUTTI_FLIGHT_RECORDER_ENTRIES", {"0", "10"}},
      {"TUTTI_ALGORITHM", {"all_reduce=staged", "", "unset on ranks 0 and 2 and all_reduce=staged on rank 1"}},
      {"TUTTI_ALGORITHM",
       {"all_reduce=direct", "all_reduce=ring", "all_reduce=ring on ranks 0 and 2 and all_reduce=direct"}},
      {"TUTTI_ALGORITHM", {"broadcast=staged", "", "unset on ranks 0 and 2 and broadcast=staged on rank 1"}},
      {"TUTTI_PLAN_PATH", {plan, "", "unset on ranks 0 and 2 and " + plan + " (with the plans "}},
      {"TUTTI_TUNING_PATH", {"none", ""}},
      {"TUTTI_CACHE_DIR", {"none", ""}},
      {"TUTTI_PLUGIN_PATH", {folder.path(), ""}},
      {"TUTTI_NCCL_LIB_PATH", {"/no/such/file", ""}},
      {"TUTTI_CUDA_TRANSPORT", {"host", "peer"}},
      {"TUTTI_CUDA_ALGORITHM", {"ll_one_shot", ""}},
      {"TUTTI_CUDA_MAX_BLOCKS", {"3", "0"}},
      {"TUTTI_CUDA_COMPILE", {"off", "wait"}},
      {"TUTTI_NVRTC", {"/no/such/file", ""}},
      {"TUTTI_CUDA_WATCHDOG", {"end", "log"}},
      {"TUTTI_HEARTBEAT_MS", {"10", "60000"}},
  };
  for (const ConfigVariable& variable : describe(Config{})) {
    if (variable.name == "TUTTI_SECRET") continue;  // a rank with another is a stranger to the others
    EXPECT_TRUE(settings.contains(variable.name)) << variable.name << " is not tried";
  }
  for (const auto& [name, odd] : settings) {
    SCOPED_TRACE(name + "=" + odd.value + " against " + odd.others);
    World world;
    world.size = 3;
    std::vector<std::string> errors(3);
    world.errors = &errors;
    world.config_of = [&, name = name, odd = odd](int rank) {
      const std::string value = rank == 1 ? odd.value : odd.others;
      return parse_config([&](const char* asked) { return name == asked && !value.empty() ? value.c_str() : nullptr; });
    };
    run_ranks(world, expect_right_results);
    for (const std::string& error : errors) {
      if (odd.said.empty()) {
        EXPECT_EQ(error, "");
      } else {
        EXPECT_NE(error.find(name), std::string::npos) << error;
        EXPECT_NE(error.find(odd.said), std::string::npos) << error;
      }
    }
  }
}

// What is no variable of the environment. A rank's timeout is its own, and whoever has more time hears of its end.
TEST(Settings, TheTimeoutOfAGroupMayDiffer) {
  for (const int hosts : {1, 3}) {
    World world;
    world.size = 3;
    if (hosts > 1) world.host_of = [](int r) { return "host" + std::to_string(r); };
    std::vector<std::string> errors(3);
    world.errors = &errors;
    world.timeout_of = [](int rank) -> std::chrono::milliseconds {
      return rank == 1 ? std::chrono::seconds(5) : std::chrono::minutes(10);
    };
    std::promise<void> others_failed;
    std::atomic<int> failed{0};
    run_ranks(world, [&](Communicator& c) {
      expect_right_results(c);
      if (c.rank() == 0) {
        EXPECT_EQ(others_failed.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
        return;
      }
      std::vector<float> x(1), y(1);
      try {
        c.run(make(Collective::kAllReduce, x, y));
      } catch (const Error&) {
        if (failed.fetch_add(1) == 1) others_failed.set_value();
        throw;
      }
    });
    EXPECT_EQ(errors[0], "");
    EXPECT_NE(errors[1].find("5000 ms"), std::string::npos) << errors[1];
    EXPECT_NE(errors[1].find("rank 0"), std::string::npos) << errors[1];
    EXPECT_NE(errors[2].find("rank 1"), std::string::npos) << errors[2];
  }
}

// All ranks are told that they go by other algorithms, also where no call of theirs would take them.
TEST(Settings, AlgorithmsThatOneRankHasAreNamedToAllRanks) {
  plan::Plan ring = plan::ring_all_reduce(3);
  ring.name = "installed";
  const UserAlgorithmPtr by_plan = plan_algorithm(plan::write_plan(ring), "a test");
  const UserAlgorithmPtr by_library = library_algorithm(Collective::kAllReduce, "staged");
  const auto choose = [&](const AlgorithmRequest&) { return by_library; };
  const std::map<std::string, AlgorithmSet> sets = {{"a plan", {{by_plan}, nullptr}},
                                                    {"a plan and the library's", {{by_plan, by_library}, nullptr}},
                                                    {"the library's", {{by_library}, nullptr}},
                                                    {"a function", {{by_library}, choose}}};
  for (const auto& [name, set] : sets) {
    for (const int hosts : {1, 3}) {
      for (int odd = 0; odd < 3; ++odd) {
        SCOPED_TRACE(name + " on rank " + std::to_string(odd) + " of " + std::to_string(hosts) + " hosts");
        World world;
        world.size = 3;
        world.timeout = std::chrono::minutes(10);
        if (hosts > 1) world.host_of = [](int r) { return "host" + std::to_string(r); };
        std::vector<std::string> errors(3);
        world.errors = &errors;
        run_ranks(world, [&, &set = set, odd = odd](Communicator& c) {
          if (c.rank() == odd) c.set_algorithms(set);
          expect_right_results(c);
        });
        int named = 0;
        for (const std::string& error : errors) {
          const bool names =
              error.find(" with the plans ") != std::string::npos || error.find(" by staged (") != std::string::npos;
          // Two ranks that have found it may tell the third before it has looked.
          const bool heard = error.find("its call differs from that of rank") != std::string::npos;
          EXPECT_TRUE(names || heard) << error;
          named += names ? 1 : 0;
        }
        EXPECT_GT(named, 0);
      }
    }
  }
}

// What one rank cannot use is told to those who wait for it, long before their deadline.
TEST(Settings, WhatOneRankRefusesIsToldToAll) {
  for (const int hosts : {1, 3}) {
    World world;
    world.size = 3;
    world.timeout = std::chrono::minutes(10);
    std::vector<std::string> errors(3);
    world.errors = &errors;
    if (hosts > 1) world.host_of = [](int r) { return "host" + std::to_string(r); };
    world.plan_path_of = [](int rank) { return rank == 1 ? "/nowhere/plan.json" : ""; };
    run_ranks(world, [](Communicator&) { FAIL() << "the group formed"; });
    EXPECT_NE(errors[1].find("/nowhere/plan.json"), std::string::npos) << errors[1];
    for (const int rank : {0, 2}) {
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_NE(error.find("rank 1 cannot join the group of rank " + std::to_string(rank)), std::string::npos) << error;
      EXPECT_NE(error.find(errors[1]), std::string::npos) << error;
    }
  }
}

// A store keeps what was said. Ranks that try again under the same name form the group, or are told to take another
// name; under that it forms.
TEST(Settings, AGroupThatHasNotFormedFormsUnderAnotherName) {
  MemoryStore store;
  const auto form = [&](const std::string& id, bool good) {
    std::vector<std::string> errors(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; ++r) {
      threads.emplace_back([&, r] {
        CommunicatorOptions options;
        options.timeout = std::chrono::minutes(10);
        options.config.log_level = "error";
        if (r == 1 && !good) options.config.plan_path = "/nowhere/plan.json";
        errors[static_cast<std::size_t>(r)] =
            error_of([&] { Communicator::create(store, id, r, 2, options)->run(Call{}); }).what();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  };
  const std::vector<std::string> first = form("job", false);
  EXPECT_NE(first[0].find("take another name"), std::string::npos) << first[0];
  EXPECT_NE(first[1].find("/nowhere/plan.json"), std::string::npos) << first[1];
  for (const std::string& error : form("job", true)) {
    EXPECT_TRUE(error.empty() || error.find("take another name") != std::string::npos) << error;
  }
  EXPECT_EQ(form("another job", true), std::vector<std::string>(2));
}

}  // namespace
}  // namespace tutti::test
