// Plans with loops: which lengths decide, and what two loops that meet may differ in.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/limits.h"
#include "plan/plan_builder.h"
#include "plan/reader.h"
#include "plan/sizes.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr auto kRelaxedSignal = OpKind::kRelaxedSignal;
constexpr auto kRelaxedWait = OpKind::kRelaxedWait;
constexpr std::int64_t kUnit = std::int64_t{1} << 20;

using At = PlanBuilder::Block;

// As a plan comes from a file.
Plan loaded(const Plan& plan) { return read_plan(write_plan(plan, -1)); }

void expect_proven(const Plan& plan, const std::string& what) {
  const Verdict verdict = verify_strictly(loaded(plan));
  EXPECT_EQ(verdict.outcome, Outcome::kProven) << what << ": " << verdict.fault.message;
}

void expect_refused(const Plan& plan, FaultKind kind, const std::string& what) {
  const Verdict verdict = verify_strictly(loaded(plan));
  EXPECT_EQ(verdict.outcome, Outcome::kRejected) << what;
  EXPECT_EQ(verdict.fault.kind, kind) << what << ": " << verdict.fault.message;
}

// Makes a loop of what the block does from operation `first` on.
void repeat(const At& block, std::size_t first, std::int32_t chunks = 1, std::int64_t unit = kUnit) {
  auto& all = block.operations();
  std::vector<Operation> body(all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
  all.resize(first);
  block.add(loop_of(chunks, std::move(body), unit));
}

Operation on_semaphore(OpKind kind, std::int32_t id) {
  Operation op;
  op.kind = kind;
  op.semaphore_ids = {id};
  return op;
}

// A chunk of one and a half units makes three iterations over both chunks, and two over each.
TEST(VerifierLoops, LoopsAreExaminedAtEveryLength) {
  PlanBuilder builder(PlanCollective::kCustom, 1, 2, 2, 0);
  builder.plan.ranks[0].semaphores = {0};
  builder.at(0, 1);
  builder.at(0, 0).add(loop_of(2, {on_semaphore(OpKind::kSemRelease, 0)}));
  builder.at(0, 1).add(loop_of(2, {on_semaphore(OpKind::kSemAcquire, 0)}));
  expect_proven(builder.plan, "alike");
  auto& operations = builder.at(0, 1).operations();
  operations.assign(2, loop_of(1, {on_semaphore(OpKind::kSemAcquire, 0)}));
  expect_refused(builder.plan, FaultKind::kDeadlock, "in two");
}

// Three credits, whether the semaphore begins with them or its thread block gives them before its loop.
TEST(VerifierLoops, CreditsMayBeGivenByReleases) {
  for (const std::int32_t released : {0, 1, 3}) {
    PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
    builder.plan.reuse_resources = true;
    builder.plan.ranks[0].semaphores = {0, 3 - released};
    builder.at(0, 1);
    const auto stage = [](std::int32_t from, std::int32_t to, Operand source, Operand destination) {
      Operation copy;
      copy.kind = OpKind::kCopy;
      copy.sources = {source};
      copy.destinations = {destination};
      return loop_of(1, {on_semaphore(OpKind::kSemAcquire, from), Operation{}, copy, Operation{},
                         on_semaphore(OpKind::kSemRelease, to)});
    };
    for (std::int32_t i = 0; i < released; ++i) builder.at(0, 1).release(1);
    builder.at(0, 0).add(stage(1, 0, local(kI, 0), local(kS, 0)));
    builder.at(0, 1).add(stage(0, 1, local(kS, 0), local(kO, 0)));
    for (std::int32_t i = 0; i < released; ++i) builder.at(0, 0).acquire(1);
    expect_proven(builder.plan, std::to_string(released));
  }
}

// What one rank of a connection does in one loop over two chunks, and the other in a loop for each: a chunk of one and
// a half units makes three iterations here and four there.
TEST(VerifierLoops, TheSidesOfAConnectionIterateAlike) {
  for (const bool in_two : {false, true}) {
    for (const bool port : {false, true}) {
      PlanBuilder builder(PlanCollective::kCustom, 2, 2, 2, 0);
      const auto first = builder.at(0);
      const auto second = builder.at(1);
      port ? first.port_signal(1) : first.signal(1);
      repeat(first, 0, 2);
      for (std::size_t loops = 0; loops < (in_two ? 2 : 1); ++loops) {
        port ? second.port_wait(0) : second.wait(0);
        repeat(second, loops, in_two ? 1 : 2);
      }
      const std::string what = port ? "port" : "memory";
      in_two ? expect_refused(builder.plan, FaultKind::kDeadlock, what) : expect_proven(builder.plan, what);
    }
  }
}

// The same of two thread blocks that meet at a barrier.
TEST(VerifierLoops, ThoseWhoMeetAtABarrierIterateAlike) {
  for (const bool in_two : {false, true}) {
    PlanBuilder builder(PlanCollective::kCustom, 1, 2, 2, 0);
    builder.at(0, 0).barrier(0, 2);
    repeat(builder.at(0, 0), 0, 2);
    for (std::size_t loops = 0; loops < (in_two ? 2 : 1); ++loops) {
      builder.at(0, 1).barrier(0, 2);
      repeat(builder.at(0, 1), loops, in_two ? 1 : 2);
    }
    in_two ? expect_refused(builder.plan, FaultKind::kDeadlock, "in two") : expect_proven(builder.plan, "alike");
  }
}

// The root puts unit after unit and signals once, behind its loop; the leaf copies unit after unit of `unit` bytes.
enum class Waits { kBefore, kInEachIteration, kBehind };
Plan signalled_once(Waits waits, std::int64_t unit) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 1);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  leaf.signal(0, 0, kRelaxedSignal);
  root.wait(1, 0, kRelaxedWait).nop().put(1, local(kI, 0), kS, 0).copy(local(kI, 0), local(kO, 0));
  repeat(root, 2);
  root.nop().signal(1);
  if (waits == Waits::kBefore) leaf.wait(0).nop();
  const std::size_t begin = leaf.operations().size();
  if (waits == Waits::kInEachIteration) leaf.wait(0).nop();
  leaf.copy(local(kS, 0), local(kO, 0));
  repeat(leaf, begin, 1, unit);
  if (waits == Waits::kBehind) leaf.nop().wait(0);
  return builder.plan;
}

TEST(VerifierLoops, ASignalBehindALoopIsForAllOfIt) {
  for (const std::int64_t unit : {kUnit / 2, kUnit, 2 * kUnit}) {
    const std::string what = std::to_string(unit);
    expect_proven(signalled_once(Waits::kBefore, unit), what);
    const Verdict early = verify(loaded(signalled_once(Waits::kBehind, unit)));  // no repair helps
    EXPECT_EQ(early.outcome, Outcome::kRejected) << what;
    EXPECT_TRUE(early.fault.kind == FaultKind::kRace || early.fault.kind == FaultKind::kWrongResult) << what;
    expect_refused(signalled_once(Waits::kInEachIteration, unit), FaultKind::kDeadlock, what);
  }
}

// Two thread blocks over a ring of scratch: one fills it, the other empties it, with `credits` between them. The
// filler gets them as the semaphore's first value, or from `released` releases before the other's loop.
Plan over_a_ring(std::int32_t credits, std::int64_t filled, std::int64_t emptied, std::int32_t released = 0) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
  builder.plan.reuse_resources = true;
  builder.plan.ranks[0].semaphores = {0, credits - released};
  const auto fills = builder.at(0, 0);
  const auto empties = builder.at(0, 1);
  for (std::int32_t i = 0; i < released; ++i) empties.release(1);
  fills.acquire(1).nop().copy(local(kI, 0), local(kS, 0)).nop().release(0);
  repeat(fills, 0, 1, filled);
  empties.acquire(0).nop().copy(local(kS, 0), local(kO, 0)).nop().release(1);
  repeat(empties, static_cast<std::size_t>(released), 1, emptied);
  for (std::int32_t i = 0; i < released; ++i) fills.acquire(1);
  return builder.plan;
}

// Iterations of different units begin in a ring at different places: none wraps, and no larger message is served.
TEST(VerifierLoops, OnlyLoopsOfOneUnitShareARing) {
  const Plan alike = over_a_ring(2, kUnit, kUnit);
  EXPECT_NO_THROW(Sizes(alike, kReusedScratchBytes));
  EXPECT_NO_THROW(Sizes(alike, 4 * kReusedScratchBytes));
  // Either may be the wider one. Here what one fills in two iterations the other empties in one.
  for (const bool wide_fills : {false, true}) {
    PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
    builder.plan.reuse_resources = true;
    builder.plan.ranks[0].semaphores = {0};
    const auto fills = builder.at(0, 0);
    const auto empties = builder.at(0, 1);
    fills.copy(local(kI, 0), local(kS, 0)).nop();
    repeat(fills, 0, 1, wide_fills ? 2 * kUnit : kUnit);
    fills.release(0);
    empties.acquire(0).nop().copy(local(kS, 0), local(kO, 0)).nop();
    repeat(empties, 2, 1, wide_fills ? kUnit : 2 * kUnit);
    expect_proven(builder.plan, wide_fills ? "wide fills" : "wide empties");
    EXPECT_NO_THROW(Sizes(builder.plan, kReusedScratchBytes));
    EXPECT_THROW(Sizes(builder.plan, kReusedScratchBytes + kUnit), Error);
  }
}

// The ring is judged by the unit of the loops that use it, whatever the unit of another loop.
TEST(VerifierLoops, ALoopBesideARingDoesNotChangeIt) {
  constexpr std::int64_t kWide = kReusedScratchBytes / 2;  // the ring holds two
  for (const std::int64_t beside : {kWide / 2, kWide, 2 * kWide, 3 * kWide}) {
    for (const std::int32_t credits : {1, 2, 3}) {
      Plan plan = over_a_ring(credits, kWide, kWide);
      for (std::int32_t& chunks : plan.ranks[0].chunks) chunks *= 2;
      plan.ranks[0].chunks[static_cast<int>(kS)] = 1;
      ThreadBlock copies;
      Operation copy;
      copy.kind = OpKind::kCopy;
      copy.sources = {local(kI, 1)};
      copy.destinations = {local(kO, 1)};
      copies.operations = {loop_of(1, {copy}, beside)};
      plan.ranks[0].blocks.push_back(copies);
      const std::string what = std::to_string(credits) + " credits beside " + std::to_string(beside);
      credits <= 2 ? expect_proven(plan, what) : expect_refused(plan, FaultKind::kRace, what);
    }
  }
}

// Credits for more iterations than are looked at one by one.
constexpr std::int32_t kManyCredits = 30;

TEST(VerifierLoops, ManyCreditsMustFitIntoTheRing) {
  const auto unit_of = [](std::int64_t fits) { return kReusedScratchBytes / fits / 16 * 16; };
  for (const std::int32_t released : {0, 11, kManyCredits}) {
    const std::string what = std::to_string(released) + " released";
    expect_proven(over_a_ring(kManyCredits, unit_of(32), unit_of(32), released), what + ", ring of 32");
    expect_proven(over_a_ring(kManyCredits, unit_of(30), unit_of(30), released), what + ", ring of 30");
    expect_refused(over_a_ring(kManyCredits, unit_of(29), unit_of(29), released), FaultKind::kRace,
                   what + ", ring of 29");
    expect_refused(over_a_ring(kManyCredits, unit_of(26), unit_of(26), released), FaultKind::kRace,
                   what + ", ring of 26");
  }
}

// A loop lives on the credits alone, as they are given back behind it: a longer message never ends.
TEST(VerifierLoops, AMessageLongerThanTheCreditsIsLookedAt) {
  for (const bool given_back_meanwhile : {true, false}) {
    for (const std::int32_t released : {0, 7, kManyCredits}) {
      PlanBuilder builder(PlanCollective::kCustom, 1, 1, 1, 0);
      builder.plan.ranks[0].semaphores = {0, kManyCredits - released};
      const auto takes = builder.at(0, 0);
      const auto gives = builder.at(0, 1);
      for (std::int32_t i = 0; i < released; ++i) gives.release(1);
      takes.acquire(1);
      repeat(takes, 0);
      if (!given_back_meanwhile) {
        takes.release(0);
        gives.acquire(0);
      }
      const std::size_t begin = gives.operations().size();
      gives.release(1);
      repeat(gives, begin);
      for (std::int32_t i = 0; i < released; ++i) takes.acquire(1);
      const std::string what = std::to_string(released) + " released";
      given_back_meanwhile ? expect_proven(builder.plan, what)
                           : expect_refused(builder.plan, FaultKind::kDeadlock, what);
    }
  }
}

}  // namespace
}  // namespace tutti::plan
