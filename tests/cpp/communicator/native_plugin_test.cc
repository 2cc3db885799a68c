// What the library promises to plug-ins, and of them. Ranks are threads; the plug-in is asking_plugin.cc.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <tutti/plugin/kernel.cuh>
#include <vector>

#include "bootstrap/ranks.h"
#include "communicator/asking_plugin.h"
#include "communicator/communicator_impl.h"
#include "communicator/formed_group.h"
#include "communicator/thread_ranks.h"
#include "tutti/user_algorithm.h"

namespace tutti::test {
namespace {

std::array<HostChannel*, 2> hosts;
std::atomic<int> step_of_rank_0{-1};

// Rank 0, as rank 1 sees it: it publishes wherever it may store, and not where it waits.
void ask(int rank, int step) {
  if (rank == 0) {
    EXPECT_FALSE(hosts[1]->nobody_publishes()) << "at step " << step;
    step_of_rank_0.store(step, std::memory_order_release);  // release: pairs with the acquire below
    return;
  }
  while (step_of_rank_0.load(std::memory_order_acquire) < step || !hosts[1]->nobody_publishes()) {
    std::this_thread::yield();
  }
}

TEST(NativePlugin, PublishesWhereverItDoesNotWait) {
  const UserAlgorithmPtr algorithm = asking_algorithm("create_asking", ask);
  ASSERT_NE(algorithm, nullptr);
  MemoryStore store;
  const auto errors = run_threads(2, [&](int rank) {
    const CommunicatorOptions options;
    FormedGroup formed = form_group(store, "test", rank, 2, options);
    hosts[static_cast<std::size_t>(rank)] = formed.host.get();
    const auto group = std::make_shared<CommunicatorImpl>(std::move(formed), rank, 2, options, PlanFiles{}, Tuning{});
    float number = 1;
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = 1;
    call.input = call.output = Blocks::single(&number, sizeof number);
    group->run(Call{}, {});  // then both are there
    const AlgorithmChoice choice{algorithm, {}};
    call.choice = &choice;
    group->run(call, {});
    EXPECT_EQ(group->metrics().rescued_waits, 0U);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(NativeKernelInMainMemory, SaysHowManyRangesItReduces) {
  std::string reason;
  TuttiPluginCall call{};
  call.library = &reason;
  call.element_bytes = 4;
  call.fail = [](void* into, const char* text) { *static_cast<std::string*>(into) = text; };
  call.reduce = [](void*, void*, const void* const*, std::int32_t, std::uint64_t) { FAIL() << "it reduces them"; };
  plugin::Context context(call);
  plugin::HostTeam team(context);
  std::array<std::byte, 4> data{};
  const std::vector<const std::byte*> ranges(kMostRanks + 1, data.data());
  team.reduce(data.data(), ranges.data(), kMostRanks + 1, data.size());
  EXPECT_NE(reason.find("give reduce() at most size() at a time"), std::string::npos) << reason;
}

TEST(NativePlugin, IsNamedWhereItsScratchHasNoRoom) {
  const UserAlgorithmPtr algorithm = asking_algorithm("create_greedy", ask);
  ASSERT_NE(algorithm, nullptr);
  std::vector<std::string> errors;
  World world;
  world.errors = &errors;
  run_ranks(world, [&](Communicator& c) {
    float number = 1;
    Call call;
    call.collective = Collective::kAllReduce;
    call.dtype = DataType::kFloat32;
    call.count = 1;
    call.input = call.output = Blocks::single(&number, sizeof number);
    const AlgorithmChoice choice{algorithm, {}};
    call.choice = &choice;
    c.run(call);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("has no room in its arena for the 1125899906842624 bytes of scratch of plug-in \"greedy\""),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace tutti::test
