// The places at which groups were to meet: where one has not formed its place ends too, and not before all have heard
// why. The ranks are threads on one host, so that only these places listen. Failures are asked for again and again:
// what each left would add up.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bootstrap/ranks.h"
#include "communicator/plan_calls.h"
#include "communicator/thread_ranks.h"
#include "executor/executor_plans.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

constexpr int kRounds = 20;

bool no_place_is_left() {
  return soon([] { return listening_sockets() == 0; });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

World world_of(int size, const std::function<std::string(int)>& plan_path_of = {}) {
  World world;
  world.size = size;
  world.plan_path_of = plan_path_of;
  return world;
}

// Half of it is for reaching the place, however busy the machine is.
constexpr std::chrono::seconds kForSurvivors{2};

CommunicatorOptions patient_options() {
  CommunicatorOptions options;
  options.timeout = std::chrono::minutes(10);  // the test's watchdog comes first
  options.config.log_level = "error";
  return options;
}

// The file of a plan that rank 1 alone reads is there for the parent, and not for what is split from it.
TEST(LeftPlaces, NoneOfASplitThatARankCannotJoin) {
  PlanFolder of_all, of_one;
  const std::string files[] = {of_all.add("plan", plan::two_step_all_reduce(3)),
                               of_one.add("plan", plan::two_step_all_reduce(3))};
  int before = 0, after = 0;
  const World world = world_of(3, [&](int rank) { return files[rank == 1 ? 1 : 0]; });
  run_ranks(world, [&](Communicator& parent) {
    if (parent.rank() == 1) std::filesystem::remove(files[1]);
    for (int round = 0; round < kRounds; ++round) {
      const Error error = error_of([&] { split_group(parent, 0, 0, "part"); });
      const bool told = contains(error.what(), "rank 1 cannot join the group of rank");
      EXPECT_TRUE(contains(error.what(), files[1]) && told == (parent.rank() != 1)) << error.what();
      EXPECT_EQ(listening_sockets(), 0);
      if (parent.rank() != 0) continue;
      (round == 0 ? before : after) = open_descriptors();
    }
    if (parent.rank() == 1) of_one.add("plan", plan::two_step_all_reduce(3));
    parent.run(Call{});
    EXPECT_EQ(split_group(parent, 0, 0, "part")->size(), 3) << "what was said of those is heard of no other";
  });
  EXPECT_LT(after, before + kRounds);
}

std::vector<std::string> join_all(const GroupId& id, const std::vector<int>& ranks, int size) {
  return run_threads(static_cast<int>(ranks.size()), [&](int at) {
    const int rank = ranks[static_cast<std::size_t>(at)];
    join_group(id, rank, size, [&]() -> CommunicatorOptions {
      if (rank == 1) throw std::runtime_error("no such setting");
      return patient_options();
    });
  });
}

TEST(LeftPlaces, OfAnIdWhoseRanksHaveAllHeardWhy) {
  for (int round = 0; round < kRounds; ++round) {
    for (const std::string& error : join_all(make_group_id(Config{}, "localhost"), {0, 1}, 2)) {
      EXPECT_TRUE(contains(error, "no such setting")) << error;
    }
  }
  EXPECT_TRUE(no_place_is_left());
}

TEST(LeftPlaces, OfAnIdWhoseLastRankIsLate) {
  const GroupId id = make_group_id(Config{}, "localhost");
  for (const std::vector<int>& ranks : {std::vector<int>{0, 1}, std::vector<int>{2}}) {
    EXPECT_EQ(listening_sockets(), 1);
    for (const std::string& error : join_all(id, ranks, 3)) {
      EXPECT_TRUE(contains(error, "no such setting")) << error;
    }
  }
  EXPECT_TRUE(no_place_is_left());
}

TEST(LeftPlaces, NoneOfAShrink) {
  run_ranks(world_of(2), [](Communicator& parent) {
    if (parent.rank() == 1) return parent.abort("gone");
    error_of([&] { parent.run(Call{}); });
    const GroupId id = make_group_id(Config{}, "localhost");
    EXPECT_EQ(shrink_group(parent, id, kForSurvivors, nullptr)->size(), 1);
    EXPECT_EQ(listening_sockets(), 0);
  });
}

// Who has not come by the time when the survivors have agreed is not waited for.
TEST(LeftPlaces, OfAShrinkThatFails) {
  PlanFolder folder;
  const std::string file = folder.add("plan", plan::two_step_all_reduce(2));
  run_ranks(world_of(2, [&](int) { return file; }), [&](Communicator& parent) {
    if (parent.rank() == 1) return parent.abort("gone");
    error_of([&] { parent.run(Call{}); });
    std::filesystem::remove(file);
    std::vector<int> members;
    const GroupId id = make_group_id(Config{}, "localhost");
    const Error error = error_of([&] { shrink_group(parent, id, kForSurvivors, &members); });
    EXPECT_TRUE(contains(error.what(), file)) << error.what();
    EXPECT_EQ(members, std::vector<int>{0});
    EXPECT_TRUE(no_place_is_left());
  });
}

}  // namespace
}  // namespace tutti::test
