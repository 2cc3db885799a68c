// Small files that would become large: reading and proving them takes bounded memory and work, and says what was too
// much. Memory is measured in a process that may have no more.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "plan/limits.h"
#include "plan/plan_builder.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"

namespace tutti::plan {
namespace {

constexpr std::size_t kMega = std::size_t{1} << 20;
constexpr ProofLimits kLimits{.steps = 1 << 23, .bytes = 64 << 20};

struct Hostile {
  std::string name;
  std::function<Plan()> make;
  std::string says;
};

Operation of(OpKind kind, std::vector<std::int32_t> semaphores = {}) {
  Operation op;
  op.kind = kind;
  op.semaphore_ids = std::move(semaphores);
  return op;
}

Operation copy_of(Operand source, Operand destination) {
  Operation op;
  op.kind = OpKind::kCopy;
  op.sources = {source};
  op.destinations = {destination};
  return op;
}

// One number each.
Plan chunks(std::int32_t count) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, count, count, 0);
  builder.at(0).copy(local(kI, 0, count), local(kO, 0, count));
  return builder.plan;
}

// Where one loop has an iteration, the other has two thousand.
Plan counting_loop() {
  PlanBuilder builder(PlanCollective::kCustom, 1, 1, 1, 0);
  builder.plan.ranks[0].semaphores = {20};  // credits, for which longer chunks are looked at
  std::vector<Operation> body;
  for (int i = 0; i < 16; ++i) {
    body.push_back(of(OpKind::kSemRelease, {0}));
    body.push_back(of(OpKind::kSemAcquire, {0}));
  }
  builder.at(0).add(loop_of(1, {of(OpKind::kNop)}, 16));
  builder.at(0).add(loop_of(1 << 11, body, 16));
  return builder.plan;
}

// Each knows something else.
Plan signals_not_taken_yet() {
  PlanBuilder builder(PlanCollective::kCustom, 1, 1, 1, 0);
  builder.plan.ranks[0].semaphores = {0, 20};
  const std::vector<Operation> body{copy_of(local(kI, 0), local(kO, 0)), of(OpKind::kNop),
                                    of(OpKind::kSemRelease, {0})};
  builder.at(0, 0).add(loop_of(1 << 11, body, 16));
  builder.at(0, 1).add(loop_of(1 << 11, {of(OpKind::kSemAcquire, {0})}, 16));
  builder.at(0, 1).add(loop_of(1, {of(OpKind::kSemAcquire, {1}), of(OpKind::kSemRelease, {1})}, 16));
  return builder.plan;
}

// Every unit is read by so many lanes as there are operations.
Plan reads_without_a_join() {
  constexpr std::int32_t kChunks = 1500;
  PlanBuilder builder(PlanCollective::kCustom, 1, kChunks, kChunks, 0);
  for (std::int32_t i = 0; i < kChunks; ++i) {
    builder.at(0, 0).copy(local(kI, i, kChunks - i), local(kO, i, kChunks - i));
  }
  return builder.plan;
}

// Each transfer looks at all uses of the call before.
Plan transfers_through_scratch() {
  constexpr std::int32_t kChunks = 3000;
  PlanBuilder builder(PlanCollective::kCustom, 2, kChunks, kChunks, kChunks);
  for (std::int32_t i = 0; i < kChunks; ++i) builder.at(0).put_port(OpKind::kPut, 1, local(kI, i), kS, i);
  builder.at(0).port_signal(1).flush(1).port_wait(1);
  builder.at(1).port_wait(0).nop().port_signal(0).flush(0);
  return builder.plan;
}

// Each thread block waits for the one after it.
Plan blocks_in_reverse() {
  constexpr std::int32_t kBlocks = 4096;
  PlanBuilder builder(PlanCollective::kCustom, 1, 1, 1, 0);
  builder.plan.ranks[0].semaphores.assign(kBlocks, 0);
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    if (b + 1 < kBlocks) builder.at(0, b).acquire(b + 1);
    if (b > 0) builder.at(0, b).release(b);
    if (b + 1 == kBlocks) builder.at(0, b).nop();
  }
  return builder.plan;
}

Plan channels_of_many_blocks() {
  PlanBuilder builder(PlanCollective::kCustom, 2, 1, 1, 0);
  for (Rank& rank : builder.plan.ranks) {
    const std::int32_t peer = &rank == &builder.plan.ranks[0] ? 1 : 0;
    rank.channels[static_cast<std::size_t>(ChannelKind::kPort)].assign(1 << 18, peer);
  }
  builder.at(0).nop();
  builder.at(1).nop();
  return builder.plan;
}

Plan units_far_apart() {
  PlanBuilder builder(PlanCollective::kCustom, 1, 1, 1, 0);
  builder.plan.ranks[0].semaphores = {1 << 20};
  const std::vector<Operation> body{of(OpKind::kSemAcquire, {0}), of(OpKind::kSemRelease, {0})};
  builder.at(0).add(loop_of(1 << 24, body, std::int64_t{1} << 40));
  builder.at(0).add(loop_of((1 << 24) - 1, body, 16));
  builder.plan.max_message_bytes = std::uint64_t{1} << 63;
  return builder.plan;
}

const std::vector<Hostile>& hostile_plans() {
  static const std::vector<Hostile> kPlans{
      {"chunks", [] { return chunks(1 << 21); }, "64 MB"},
      {"most chunks", [] { return chunks(1 << 24); }, "16777216 chunks"},
      {"a loop that counts", counting_loop, "steps"},
      {"signals not taken yet", signals_not_taken_yet, "more than"},
      {"reads without a join", reads_without_a_join, "more than"},
      {"transfers through scratch", transfers_through_scratch, "steps"},
      {"blocks in reverse", blocks_in_reverse, "steps"},
      {"channels", channels_of_many_blocks, "64 MB"},
      {"units far apart", units_far_apart, "differ in too many ways"},
  };
  return kPlans;
}

TEST(Bounds, NoPlanTakesMoreThanTheLimits) {
  for (const Hostile& hostile : hostile_plans()) {
    const Verdict verdict = verify(read_plan(write_plan(hostile.make(), -1)), kLimits);
    EXPECT_EQ(verdict.outcome, Outcome::kRejected) << hostile.name;
    EXPECT_EQ(verdict.fault.kind, FaultKind::kTooLarge) << hostile.name << ": " << verdict.fault.message;
    EXPECT_NE(verdict.fault.message.find("not proven: "), std::string::npos) << verdict.fault.message;
    EXPECT_NE(verdict.fault.message.find(hostile.says), std::string::npos)
        << hostile.name << ": " << verdict.fault.message;
  }
}

TEST(Bounds, WhatFitsIsProven) {
  const ProofLimits enough{.steps = 1 << 20, .bytes = 16 << 20};
  const Verdict verdict = verify(ring_all_reduce(16), enough);
  EXPECT_EQ(verdict.outcome, Outcome::kProven) << verdict.fault.message;
  const ProofLimits few{.steps = 1000, .bytes = 16 << 20};
  EXPECT_NE(verify(ring_all_reduce(16), few).fault.message.find("more than 1000 steps"), std::string::npos);
}

// The repairs of a plan have a budget of their own; past it, what is wrong with the plan itself is said.
TEST(Bounds, RepairsAreBoundedToo) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 64, 64, 0);
  builder.at(1).signal(0, 0, OpKind::kRelaxedSignal).wait(0, 0, OpKind::kRelaxedWait);
  builder.at(0).wait(1, 0, OpKind::kRelaxedWait).nop().copy(local(kI, 0, 64), local(kO, 0, 64));
  builder.at(0).put(1, local(kI, 0, 64), kO, 0).nop().signal(1, 0, OpKind::kRelaxedSignal);
  EXPECT_EQ(verify(builder.plan).outcome, Outcome::kProvenAfterRepair);
  for (std::int64_t steps = 100;; steps *= 2) {
    const Verdict verdict = verify(builder.plan, {.steps = steps});
    if (verdict.fault.kind == FaultKind::kTooLarge) continue;
    EXPECT_EQ(verdict.fault.kind, FaultKind::kRace) << verdict.fault.message;
    if (verdict.outcome == Outcome::kProvenAfterRepair) break;
    ASSERT_LT(steps, 1 << 24);
  }
}

#if !defined(TUTTI_ONE_TARGET)  // sanitizers need an address space of their own size
void allow_more_memory(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + bytes;
  setrlimit(RLIMIT_AS, &limit);
}

// Runs in a child.
[[noreturn]] void exit_with(const std::function<bool()>& done) {
  try {
    std::_Exit(done() ? 0 : 1);
  } catch (const std::bad_alloc&) {
    std::_Exit(2);
  }
}

TEST(BoundsDeathTest, MemoryIsWhatWasCounted) {
  for (const Hostile& hostile : hostile_plans()) {
    const Plan plan = hostile.make();
    const auto prove = [&plan] {
      allow_more_memory(128 * kMega);
      exit_with([&plan] { return verify(plan, kLimits).fault.kind == FaultKind::kTooLarge; });
    };
    EXPECT_EXIT(prove(), ::testing::ExitedWithCode(0), "") << hostile.name;
  }
}

// Sixteen gigabytes if they were things.
TEST(BoundsDeathTest, CountsWhatASemaphoreBeginsWith) {
  PlanBuilder builder(PlanCollective::kCustom, 1, 1, 1, 0);
  builder.plan.ranks[0].semaphores.assign(256, kMaxCredit);
  builder.at(0, 0).acquire(7).acquire(7);
  const auto prove = [&builder](FaultKind fault) {
    const Plan plan = read_plan(write_plan(builder.plan, -1));
    allow_more_memory(128 * kMega);
    exit_with([&] { return verify(plan).fault.kind == fault; });
  };
  EXPECT_EXIT(prove(FaultKind::kLeftover), ::testing::ExitedWithCode(0), "");
  builder.at(0, 1).release(7).release(7);
  EXPECT_EXIT(prove(FaultKind::kNone), ::testing::ExitedWithCode(0), "");
}

// 260,000 operations in 4 MB of text.
TEST(BoundsDeathTest, OperationsAreReadOneByOne) {
  std::string text = R"({"name": "a", "collective": "custom", "protocol": "Simple", "inplace": false, "gpus": [{"id": 0,
    "input_chunks": 1, "output_chunks": 1, "scratch_chunks": 0, "threadblocks": [{"id": 0, "ops": [{"name":"nop"})";
  for (int i = 1; i < 260'000; ++i) text += R"(,{"name":"nop"})";
  text += "]}]}]}";
  const auto read = [&text] {
    allow_more_memory(95 * kMega);
    exit_with([&text] { return read_plan(text).ranks[0].blocks[0].operations.size() == 260'000; });
  };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace tutti::plan
