// Stepping: a task that is said to be ready gets somewhere, one that is not does not, and any order of steps ends with
// the contributions of all ranks.
#include "executor/cpu/stepper.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "executor_plans.h"

namespace tutti::executor {
namespace {

using plan::BufferKind;
using plan::Plan;

constexpr std::int32_t kWorld = 3;

struct Case {
  std::string name;
  Plan plan;
  std::int64_t cells = 1;
};

std::vector<Case> cases() {
  return {{"two steps", plan::two_step_all_reduce(kWorld)},     {"packets", plan::packet_two_step_all_reduce(kWorld)},
          {"switch", plan::switch_all_reduce(kWorld)},          {"ports", plan::port_all_gather(kWorld)},
          {"parts of a group", plan::split_all_to_all(kWorld)}, {"a loop", plan::looped_all_reduce(kWorld, 32), 5},
          {"in place", plan::in_place_all_gather(kWorld)},      {"read and reduce", plan::read_reduce_scatter(kWorld)}};
}

// Tasks that have not ended, as (rank, task), by whether they are ready.
std::array<std::vector<std::pair<std::int32_t, std::size_t>>, 2> tasks_of(const Stepper& stepper) {
  std::array<std::vector<std::pair<std::int32_t, std::size_t>>, 2> out;
  for (std::int32_t rank = 0; rank < kWorld; ++rank) {
    const Interpreter& own = stepper.interpreter(rank);
    for (std::size_t task = 0; task < own.tasks(); ++task) {
      const Interpreter::View view = own.view(task);
      if (view.at != nullptr) out[view.ready ? 1 : 0].emplace_back(rank, task);
    }
  }
  return out;
}

// What each rank contributed to the first cell of an output's chunk, and the chunk's own word.
std::vector<std::int64_t> words_of(const Stepper& stepper, std::int32_t rank, std::int32_t chunk) {
  const std::vector<std::byte> bytes = stepper.chunk(rank, BufferKind::kOutput, chunk, false);
  std::vector<std::int64_t> words(bytes.size() / sizeof(std::int64_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

TEST(Stepper, AnyOrderOfReadyTasksEnds) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    Stepper stepper(one.plan, one.cells);
    std::mt19937_64 random(11);
    for (int call = 0; call < 2; ++call) {
      stepper.begin();
      for (;;) {
        const auto [waiting, ready] = tasks_of(stepper);
        for (const auto& [rank, task] : waiting) EXPECT_EQ(stepper.step(rank, task), Step::kBlocked);
        if (ready.empty()) {
          EXPECT_TRUE(waiting.empty());
          break;
        }
        const auto [rank, task] = ready[random() % ready.size()];
        ASSERT_EQ(stepper.step(rank, task), Step::kRan);
      }
      for (std::int32_t rank = 0; rank < kWorld; ++rank) EXPECT_TRUE(stepper.interpreter(rank).ended());
    }
  }
}

void run_to_the_end(Stepper& stepper) {
  stepper.begin();
  for (;;) {
    const auto [waiting, ready] = tasks_of(stepper);
    if (ready.empty()) return;
    for (const auto& [rank, task] : ready) stepper.step(rank, task);
  }
}

TEST(Stepper, DataSayWhereTheyComeFrom) {
  Stepper sums(plan::two_step_all_reduce(kWorld), 1);
  run_to_the_end(sums);
  run_to_the_end(sums);
  const std::int64_t second_call = std::int64_t{1} << 32;
  for (std::int32_t chunk = 0; chunk < sums.tables().shape().block_chunks[1]; ++chunk) {
    const std::vector<std::int64_t> words = words_of(sums, 1, chunk);
    EXPECT_EQ(words[0], kWorld * (second_call + chunk + 1));
    EXPECT_EQ(words[1], 0x111);
  }
  Stepper gathered(plan::in_place_all_gather(kWorld), 2);
  run_to_the_end(gathered);
  const std::int32_t chunks = gathered.tables().shape().block_chunks[0];
  for (std::int32_t from = 0; from < kWorld; ++from) {
    const std::vector<std::int64_t> words = words_of(gathered, 2, from * chunks);
    EXPECT_EQ(words, (std::vector<std::int64_t>{1, std::int64_t{1} << (4 * from), 1, std::int64_t{1} << (4 * from)}));
  }
}

TEST(Stepper, WhatIsNotThereYetBlocks) {
  Stepper stepper(plan::packet_two_step_all_reduce(kWorld), 1);
  stepper.begin();
  // Rank 0 alone gets as far as the first packets of another rank.
  while (stepper.step(0, 0) == Step::kRan) {
  }
  const Interpreter::View view = stepper.interpreter(0).view(0);
  ASSERT_NE(view.at, nullptr);
  EXPECT_FALSE(view.ready);
  EXPECT_EQ(stepper.step(0, 0), Step::kBlocked);
}

}  // namespace
}  // namespace tutti::executor
