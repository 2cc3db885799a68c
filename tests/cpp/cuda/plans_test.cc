// Plans as GPUs run them, against the executor for CPUs: the same bits.
#include <algorithm>
#include <complex>
#include <set>

#include "cuda/plan_cases.h"
#include "cuda/plan_twin.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "plan/structure.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

void note_kinds(const std::vector<plan::Operation>& operations, std::set<plan::OpKind>& kinds) {
  for (const plan::Operation& op : operations) {
    kinds.insert(op.kind);
    note_kinds(op.body, kinds);
  }
}

// What the tests below run has every operation of the format.
TEST(PlansOnGpus, NoOperationIsLeftOut) {
  std::set<plan::OpKind> kinds;
  for (const auto& named : plan::plans_of_every_operation(2)) {
    for (const plan::Rank& rank : named.plan->ranks) {
      for (const plan::ThreadBlock& block : rank.blocks) note_kinds(block.operations, kinds);
    }
  }
  for (int kind = 0; kind <= static_cast<int>(plan::OpKind::kPipeline); ++kind) {
    EXPECT_TRUE(kinds.contains(static_cast<plan::OpKind>(kind)))
        << plan::rules_of(static_cast<plan::OpKind>(kind)).name;
  }
}

// In and out of place in turn, and sizes: less than a chunk of each block, uneven ends, several segments.
TEST(PlansOnGpus, GiveTheBitsOfTheExecutorForCpus) {
  auto all = programs();
  for (auto& named : plan::plans_of_every_operation(2)) all.push_back(std::move(named));
  for (auto& named : replicated_programs()) all.push_back(std::move(named));
  ASSERT_GE(all.size(), 55u);
  for (const auto& [name, plan] : all) {
    Twin twin(plan, 1 << 16);
    std::uint64_t seed = 0;
    for (const std::size_t bytes : {4, 1004, 260}) {
      const PlanRequest request{bytes, DataType::kFloat32, ReduceOp::kSum, seed % 2 == 1};
      const std::string fault = twin.fault(request, ++seed);
      ASSERT_EQ(fault, "") << name << ", " << plan->ranks.size() << " ranks, " << bytes << " bytes";
    }
  }
}

// A message of many segments, each an invocation of its own.
TEST(PlansOnGpus, LongMessagesRunInSegments) {
  for (auto& [name, plan] : plan::plans_of_every_operation(2)) {
    const executor::DeviceLimits least{64, executor::DevicePlan(plan, 0, {64, 1UL << 20}).memory_bytes() / 16};
    Twin twin(plan, 1 << 16, least);
    ASSERT_LT(twin.device.plans[0]->segment_bytes(), 50'004u) << name;
    const ReduceOp op = reducing(*plan) ? ReduceOp::kAvg : ReduceOp::kSum;
    EXPECT_EQ(twin.fault({50'004, DataType::kFloat32, op}, 5), "") << name;
  }
}

// Within a packet, a piece, and behind whole ones.
TEST(PlansOnGpus, MessagesEndAnywhere) {
  Twin twin(any_reduction(plan::packet_all_reduce(2)), 1 << 12);
  for (const std::size_t bytes : {1, 2, 3, 5, 6, 7, 511, 1005}) {
    for (const int workers : {1, 4}) {
      PlanRequest request{bytes, DataType::kUint8, ReduceOp::kSum, false};
      request.workers = workers;
      EXPECT_EQ(twin.fault(request, bytes), "") << bytes << " bytes, " << workers << " lanes";
    }
  }
}

TEST(PlansOnGpus, EveryTypeAndOperation) {
  for (const auto& made : {plan::packet_all_reduce(2), plan::ring_all_reduce(2)}) {
    const auto shared = any_reduction(made);
    Twin twin(shared, 1 << 12);
    int pairs = 0;
    for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
      for (int op = 0; op < kReduceOpCount; ++op) {
        const PlanRequest request{480, static_cast<DataType>(dtype), static_cast<ReduceOp>(op), op % 2 == 1};
        if (request.op == ReduceOp::kPremulSum || size_of(request.dtype) == 0 ||
            executor::refusal(*shared, request.dtype, request.op) != nullptr) {
          continue;
        }
        ++pairs;
        EXPECT_EQ(twin.fault(request, static_cast<std::uint64_t>(dtype * 16 + op)), "")
            << to_string(request.dtype) << " " << to_string(request.op);
      }
    }
    EXPECT_GT(pairs, 100);
  }
}

// Past 64 operations and 16 channels of a thread block, and past the 64 blocks that other kernels have.
TEST(PlansOnGpus, LongBlocksAndManyOfThem) {
  const auto longest = std::make_shared<const Plan>(plan::long_all_gather(2, 40, 20));
  ASSERT_GT(longest->ranks[0].blocks[0].operations.size(), 128u);
  ASSERT_GT(longest->ranks[0].blocks[0].channels[static_cast<int>(plan::ChannelKind::kMemory)].size(), 16u);
  const auto widest = std::make_shared<const Plan>(plan::wide_all_gather(2, kMaxBlocks + 6));
  for (const auto& plan : {longest, widest}) {
    Twin twin(plan, 1 << 14, {kMostPlanBlocks, 1UL << 20});
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      ASSERT_EQ(twin.fault({8004, DataType::kInt32}, seed), "") << plan->name;
    }
  }
  // All blocks of the wide plan tell how far they are.
  HostPlan device(widest, {kMostPlanBlocks, 1UL << 20});
  std::vector<std::vector<std::byte>> memory(4, std::vector<std::byte>(4096));
  PlanHow eager;
  eager.ticket = 5;
  device.run({{memory[0].data(), memory[1].data()}, {memory[2].data(), memory[3].data()}}, 1000, DataType::kInt32,
             ReduceOp::kSum, eager);
  for (int b = 0; b < kMaxBlocks + 6; ++b) {
    EXPECT_EQ(*progress_of(*device.worlds.world(1).state, b), pack_progress(5, 5)) << b;
  }
}

// Offsets and lengths of more than 32 bits, in memory that is not there.
TEST(PlansOnGpus, NumbersPastFourGigabytes) {
  constexpr std::size_t kBytes = (std::size_t{5} << 30) + 4;
  for (const auto& made : {plan::wide_all_gather(2, 1), plan::packet_two_step_all_reduce(2)}) {
    const executor::DevicePlan device(std::make_shared<const Plan>(made), 1, {64, std::size_t{1} << 40});
    ASSERT_GT(device.segment_bytes(), kBytes);
    executor::DeviceMemory nowhere;
    const std::uint64_t ranks[] = {std::uint64_t{1} << 44, std::uint64_t{2} << 44};
    for (const std::uint64_t at : ranks) nowhere.ranks.push_back(reinterpret_cast<std::byte*>(at));
    nowhere.state = reinterpret_cast<std::byte*>(std::uint64_t{3} << 44);
    const executor::DeviceRecords records = device.records({.bytes = kBytes}, nowhere);
    std::uint64_t moved = 0, farthest = 0;
    for (const executor::DeviceOp& op : records.ops) {
      const bool word = op.code == executor::DeviceCode::kSignal || op.code == executor::DeviceCode::kWait;
      if (word) continue;
      moved = std::max(moved, op.bytes);
      for (std::uint32_t i = 0; i < op.sources + op.targets; ++i) {
        const executor::DeviceOperand& operand = records.operands[op.first + i];
        const std::uint64_t base = operand.place != executor::kFixed ? 0
                                   : operand.value >= ranks[1]       ? ranks[1]
                                                                     : ranks[0];
        farthest = std::max(farthest, operand.value - base + std::uint64_t{operand.extra} * 16);
        ASSERT_LT(operand.value - base, device.memory_bytes()) << made.name;
      }
    }
    EXPECT_GT(moved, std::uint64_t{1} << 31) << made.name;
    EXPECT_GT(farthest, std::uint64_t{1} << 32) << made.name;
  }
}

// Blocks of several lanes: what they must not do before others have.
TEST(PlansOnGpus, LanesJoinWhereTheyMust) {
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    Twin twin(plan, 1 << 12);
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      PlanRequest request{200 + 16 * seed, DataType::kFloat32, ReduceOp::kSum, seed % 2 == 0};
      request.workers = seed == 1 ? 3 : 4;  // of even numbers, pairs take packets as warps do
      ASSERT_EQ(twin.fault(request, seed), "") << name;
    }
  }
}

// What packets tell, they tell one lane; a nop tells it to all of its block.
TEST(PlansOnGpus, ANopJoinsTheLanes) {
  const auto joins = [](const Plan& plan) {
    const executor::DevicePlan device(std::make_shared<const Plan>(plan), 0, {64, 1UL << 20});
    std::vector<std::byte> memory(device.memory_bytes() * 4);
    const executor::DeviceRecords made = device.records({.bytes = 64}, {{memory.data(), memory.data()}, memory.data()});
    return std::count_if(made.ops.begin(), made.ops.end(), [](const auto& op) { return op.joins != 0; });
  };
  Plan plan = plan::packet_all_reduce(2);
  plan.reduce = plan::common_reduction(plan);
  const auto before = joins(plan);
  std::ptrdiff_t added = 0;
  for (plan::Rank& rank : plan.ranks) {
    for (plan::ThreadBlock& block : rank.blocks) {
      std::vector<plan::Operation> list;
      for (const plan::Operation& op : block.operations) {
        if (!list.empty()) {
          list.emplace_back().kind = plan::OpKind::kNop;
          added += &rank == plan.ranks.data() ? 1 : 0;
        }
        list.push_back(op);
      }
      block.operations = std::move(list);
    }
  }
  ASSERT_GT(added, 0);
  EXPECT_GT(joins(plan), before);
  EXPECT_GE(joins(plan), added);
  Twin twin(std::make_shared<const Plan>(plan), 1 << 12);
  EXPECT_EQ(twin.fault({216, DataType::kFloat32, ReduceOp::kSum, false, 3}, 1), "");
}

// Flags come round past 2^32 - 1, and none of them is zero.
TEST(PlansOnGpus, InvocationsMayPassTheLastFlag) {
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    Twin twin(plan, 1 << 12);
    twin.device.set_invocation(0xfffffffeu);
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      ASSERT_EQ(twin.fault({100, DataType::kInt32, ReduceOp::kSum}, seed), "") << name;
    }
  }
}

struct Calls {
  explicit Calls(std::size_t ranks) : inputs(ranks, std::vector<std::byte>(1024)), outputs(inputs) {
    for (std::size_t r = 0; r < ranks; ++r) list.push_back({inputs[r].data(), outputs[r].data()});
  }
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<PlanCall> list;
};

// Lanes share packets by pieces of 8 bytes, but an element of 16 is one lane's: a product needs both halves.
TEST(PlansOnGpus, ElementsOf16BytesStayWhole) {
  using Complex = std::complex<double>;
  const auto plan = std::make_shared<const Plan>(plan::packet_all_reduce(2));
  const std::vector<Complex> expected(40, Complex{1, 3});  // (1 + i) (2 + i)
  for (const int workers : {0, 4}) {
    HostPlan device(plan);
    Calls calls(2);
    for (std::size_t r = 0; r < 2; ++r) {
      const std::vector<Complex> given(expected.size(), Complex{1.0 + static_cast<double>(r), 1});
      std::memcpy(calls.inputs[r].data(), given.data(), 16 * given.size());
    }
    device.run(calls.list, 16 * expected.size(), DataType::kComplex128, ReduceOp::kProduct, {.workers = workers});
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(std::memcmp(calls.outputs[r].data(), expected.data(), 16 * expected.size()), 0) << workers;
    }
  }
}

// Every wait of every kind ends, the call is not counted as complete, and later ones leave at once.
TEST(PlansOnGpus, AMissingRankIsATimeout) {
  int workers = 0;
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    HostPlan device(plan);
    for (int r = 0; r < 2; ++r) device.worlds.host(r).timeout_ns = 100'000'000;
    Calls calls(2);
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, {.workers = workers, .silent = 1});
    EXPECT_EQ(device.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << name;
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, {.workers = workers});
    workers = 2 - workers;
  }
}

// The first block has found all it waited for before a peer failed; a later one, for which the GPU had no room yet,
// finds the failure before it begins.
TEST(PlansOnGpus, ABlockThatComesAfterAFailureReportsIt) {
  int workers = 0, late = 0;
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    HostPlan device(plan);
    for (int b = 1; b < device.plans[0]->blocks(); ++b) {
      device.worlds.host(0).code = *device.worlds.world(0).control.failed = 0;
      *device.worlds.world(0).control.poison = device::pack_poison(device::FailureCode::kTimeout, 0, 1);
      Calls calls(2);
      device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum,
                 {.workers = workers, .silent = 1, .ticket = 9, .only = b});
      EXPECT_EQ(device.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << name;
      EXPECT_EQ(device.worlds.host(0).reporter, 1u) << name;
      EXPECT_EQ(device.worlds.host(0).ticket, 9u) << name;
      ++late;
    }
    workers = 2 - workers;
  }
  EXPECT_GT(late, 0);
}

// A wait within the plan itself, of a peer that has come: its failure is recorded there, not by what is around.
TEST(PlansOnGpus, APeerThatDoesNothingIsATimeout) {
  int workers = 0;
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    HostPlan device(plan);
    for (int r = 0; r < 2; ++r) device.worlds.host(r).timeout_ns = 200'000'000;
    Calls calls(2);
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, {.workers = workers, .idle = 1});
    EXPECT_EQ(device.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << name;
    EXPECT_EQ(device.worlds.host(0).peer, 1u) << name;
    workers = 2 - workers;
  }
}

// A rank may write packets of its next call while a peer still reads those of this one: they lie in the other half.
TEST(PlansOnGpus, CallsFollowEachOtherWithoutAMeeting) {
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    HostPlan device(plan);
    for (int r = 0; r < 2; ++r) device.worlds.host(r).timeout_ns = 5'000'000'000;
    Calls calls(2);
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, {.rounds = 30});
    for (int r = 0; r < 2; ++r) EXPECT_EQ(device.worlds.host(r).code, 0u) << name << ", rank " << r;
  }
}

// However long it has waited: the record says who aborted, not who did not come.
TEST(PlansOnGpus, AnAbortIsNoTimeout) {
  int workers = 0;
  for (const auto& [name, plan] : plan::plans_of_every_operation(2)) {
    HostPlan device(plan);
    device.worlds.host(0).abort = 1;
    for (int r = 0; r < 2; ++r) device.worlds.host(r).timeout_ns = 100'000'000'000;
    Calls calls(2);
    device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, {.workers = workers, .silent = 1});
    EXPECT_EQ(device.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kAborted)) << name;
    EXPECT_EQ(device.worlds.host(0).peer, 0u) << name;
    workers = 2 - workers;
  }
}

TEST(PlansOnGpus, AnotherCallIsAMismatch) {
  const auto plan = std::make_shared<const Plan>(plan::two_step_all_reduce(2));
  HostPlan device(plan);
  Calls calls(2);
  device.run(calls.list, 96, DataType::kInt32, ReduceOp::kSum, {.other = 1});
  for (const int r : {0, 1}) {
    EXPECT_EQ(device.worlds.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kMismatch));
  }
}

std::string refusal_of(const std::shared_ptr<const Plan>& plan, const executor::DeviceLimits& limits) {
  std::string text;
  for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(plan->ranks.size()); ++rank) {
    try {
      executor::DevicePlan(plan, rank, limits);
      return "rank " + std::to_string(rank) + " takes it";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      if (rank > 0) {
        EXPECT_EQ(text, error.what()) << "ranks must refuse alike";
      }
      text = error.what();
    }
  }
  return text;
}

// Its reducing block adds up so many ranges, some of them several times.
std::shared_ptr<const Plan> reducing_at_once(int sources) {
  plan::Plan plan = plan::two_step_all_reduce(2);
  for (plan::Rank& rank : plan.ranks) {
    for (plan::Operation& op : rank.blocks[1].operations) {
      if (op.kind == plan::OpKind::kReduce) op.sources.resize(static_cast<std::size_t>(sources), op.sources.back());
    }
  }
  return std::make_shared<const Plan>(std::move(plan));
}

TEST(PlansOnGpus, WhatDoesNotFitIsRefusedWithTheNumber) {
  const auto blocks = std::make_shared<const Plan>(plan::two_step_all_reduce(2));
  EXPECT_NE(refusal_of(blocks, {2, 1UL << 20}).find("3 thread blocks"), std::string::npos);
  EXPECT_NE(refusal_of(blocks, {64, 5000}).find("a plan has at most 5000"), std::string::npos);
  const auto many = std::make_shared<const Plan>(plan::put_broadcast(9, 0));
  EXPECT_NE(refusal_of(many, {64, 1UL << 20}).find("9 ranks"), std::string::npos);
  const std::string sources = refusal_of(reducing_at_once(device::kMaxRanks + 1), {64, 1UL << 20});
  EXPECT_NE(sources.find("reduces 9 ranges, and kernels take at most 8"), std::string::npos) << sources;
  EXPECT_EQ(refusal_of(reducing_at_once(device::kMaxRanks), {64, 1UL << 20}), "rank 0 takes it");
}

// What a loop makes of the shortest segment counts, not what the plan's file has.
TEST(PlansOnGpus, LoopsOfMoreTurnsThanRecordsAreRefused) {
  if (tutti::test::kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  const auto with_copies = [](std::size_t copies) {
    plan::Plan plan = plan::looped_all_reduce(2, 16);
    for (plan::Rank& rank : plan.ranks) {
      std::vector<plan::Operation>& body = rank.blocks[0].operations.back().body;
      body.insert(body.end(), copies, body.back());
    }
    return std::make_shared<const Plan>(std::move(plan));
  };
  EXPECT_EQ(refusal_of(with_copies(10), {64, 10'000}), "rank 0 takes it");
  const std::string text = refusal_of(with_copies(20'000), {64, 10'000});
  EXPECT_NE(text.find("its loops make more than 65536 operations of 64 bytes"), std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::cuda::test
