// Compiled plans on the host, against the executor for CPUs and among ranks that interpret.
#include <algorithm>

#include "cuda/compiled_cases.h"
#include "cuda/plan_twin.h"
#include "executor/cuda/emit.h"
#include "executor/cuda/rolled.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

// Who is compiled: all ranks, or every other one.
bool chosen(int who, int rank) { return who == 0 || rank % 2 == who - 1; }

// Mixed and not, twice in a row each, in blocks of one lane and of several: the same bits.
TEST(CompiledPlans, GiveTheBitsOfTheExecutorForCpusAlsoAmongInterpreters) {
  const CompiledCases cases = compiled_cases();
  std::size_t next = 0;
  for (const auto& [named, request, limits] : compiled_requests()) {
    Twin twin(named.plan, 1 << 16, limits);
    std::size_t asked = 0;
    std::uint64_t seed = 0;
    for (int who = 0; who < (tutti::test::kSanitized ? 1 : 3); ++who) {
      for (const int workers : {1, who == 0 ? 3 : 4}) {  // of even numbers, pairs take packets as warps do
        asked = 0;
        std::size_t ran = 0;
        twin.compiled = [&](int rank, const executor::DeviceVariant&, DataType, ReduceOp) -> CompiledPlan {
          const CompiledPlan plan = cases.at(next + asked++);
          ran += chosen(who, rank) ? 1 : 0;
          return chosen(who, rank) ? plan : nullptr;
        };
        PlanRequest call = request;
        call.workers = workers;
        ASSERT_EQ(twin.fault(call, ++seed), "")
            << named.name << ", " << request.bytes << " bytes, case " << next << ", choice " << who;
        ASSERT_GT(ran, 0u);
      }
    }
    next += asked;
  }
  EXPECT_EQ(next, cases.size());
}

// Every wait of every kind ends, the rank to blame is known, and the call is not counted as complete: the next one
// leaves at once.
TEST(CompiledPlans, AMissingRankIsATimeout) {
  const CompiledCases cases = compiled_cases();
  std::size_t next = 0;
  int workers = 1;
  for (const auto& [named, request, limits] : compiled_requests()) {
    const std::size_t ranks = named.plan->ranks.size();
    const std::size_t first = next;
    HostPlan device(named.plan, limits);
    next += ranks * ((request.bytes + device.plans[0]->segment_bytes() - 1) / device.plans[0]->segment_bytes());
    if (ranks != 2 || request.bytes > 2000 || request.mapped) continue;
    for (int r = 0; r < 2; ++r) device.worlds.host(r).timeout_ns = 100'000'000;
    std::vector<std::vector<std::byte>> memory(4, std::vector<std::byte>(2 * request.bytes));
    const std::vector<PlanCall> calls{{memory[0].data(), memory[1].data()}, {memory[2].data(), memory[3].data()}};
    const auto compiled = [&](int rank, const executor::DeviceVariant&, DataType, ReduceOp) {
      return cases.at(first + static_cast<std::size_t>(rank));
    };
    device.run(calls, request.bytes, request.dtype, request.op, {.workers = workers, .silent = 1}, compiled);
    EXPECT_EQ(device.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << named.name;
    EXPECT_EQ(device.worlds.host(0).peer, 1u) << named.name;
    device.run(calls, request.bytes, request.dtype, request.op, {.workers = workers}, compiled);
    workers = 4 - workers;
  }
  EXPECT_EQ(next, cases.size());
}

// The same plan and request, made anew: the same text. Its kernel is found by the text's hash.
TEST(CompiledPlans, SourceDoesNotDependOnWhenItIsMade) {
  for (const auto& [named, request, limits] : compiled_requests()) {
    std::string texts[2];
    for (std::string& text : texts) {
      const executor::DevicePlan device(named.plan, 1, limits);
      const std::size_t bytes = std::min(request.bytes, device.segment_bytes());
      text = executor::emit(device, {{.bytes = bytes}, request.dtype, ReduceOp::kSum}).text();
    }
    EXPECT_EQ(texts[0], texts[1]) << named.name;
    EXPECT_NE(texts[0].find("Plan \"" + named.plan->name + "\", rank 1 of "), std::string::npos) << texts[0];
  }
}

// Ranks' memory lies anywhere: no loop goes from one rank's to the next's, as puts to rank after rank would look like.
TEST(CompiledPlans, LoopsStayWithinOneRanksMemory) {
  for (const std::int32_t ranks : {4, 8}) {
    for (const auto& named : plan::plans_of_every_operation(ranks)) {
      for (int rank = 0; rank < ranks; ++rank) {
        const executor::DevicePlan device(named.plan, rank, {64, 1UL << 20});
        const std::string text = executor::emit(device, {{.bytes = 4096}}).text();
        const std::string step = " * turn";
        for (std::size_t at = text.find(step); at != std::string::npos; at = text.find(step, at + 1)) {
          const std::size_t begin = text.rfind(' ', at - 1) + 1;
          ASSERT_LT(std::stoull(text.substr(begin, at - begin)), executor::DeviceLimits{}.bytes)
              << named.name << ", rank " << rank << " of " << ranks << ": " << text.substr(begin - 60, 90);
        }
      }
    }
  }
}

// A comment of the source ends where its line ends, whatever a plan calls itself.
TEST(CompiledPlans, NamesStayWithinTheirComment) {
  plan::Plan odd = plan::packet_all_reduce(2);
  odd.name = "a\nb\\";
  odd.ranks[0].blocks[0].operations[0].origin = "x.py:1\\";
  const executor::DevicePlan device(std::make_shared<const plan::Plan>(odd), 0, {64, 1UL << 20});
  const std::string text = executor::emit(device, {{.bytes = 64}}).text();
  EXPECT_NE(text.find("// Plan \"a?b?\", rank 0 of 2"), std::string::npos) << text;
  EXPECT_EQ(text.find('\\'), std::string::npos);
}

// 2 + 3 * 4 + 1 records: what comes before and after stays as it is.
TEST(Rolled, FindsEvenRepetitions) {
  std::vector<executor::DeviceOp> ops;
  std::vector<executor::DeviceOperand> operands;
  const auto add = [&](executor::DeviceCode code, std::uint64_t value) {
    executor::DeviceOp op;
    op.code = code;
    op.sources = 1;
    op.first = static_cast<std::uint32_t>(operands.size());
    op.bytes = 16;
    ops.push_back(op);
    operands.emplace_back().value = value;
  };
  using executor::DeviceCode;
  add(DeviceCode::kCopy, 7);
  add(DeviceCode::kPack, 9);
  for (std::uint64_t turn = 0; turn < 4; ++turn) {
    add(DeviceCode::kSignal, 5);
    add(DeviceCode::kCopy, 1000 + 64 * turn);
    add(DeviceCode::kReduce, 4000 - 16 * turn);
  }
  add(DeviceCode::kSignal, 5);
  const auto stretches = executor::roll(ops, operands);
  ASSERT_EQ(stretches.size(), 3u);
  EXPECT_EQ(stretches[0].length, 2u);
  EXPECT_EQ(stretches[1].first, 2u);
  EXPECT_EQ(stretches[1].length, 3u);
  EXPECT_EQ(stretches[1].turns, 4u);
  EXPECT_EQ(stretches[2].first, 14u);

  operands[ops[9].first].value += 1;  // the third turn is out of step: only straight lines are left
  std::size_t written = 0;
  for (const auto& stretch : executor::roll(ops, operands)) written += stretch.length * stretch.turns;
  EXPECT_EQ(written, ops.size());
  for (const auto& stretch : executor::roll(ops, operands)) EXPECT_EQ(stretch.turns, 1u);
}

}  // namespace
}  // namespace tutti::cuda::test
