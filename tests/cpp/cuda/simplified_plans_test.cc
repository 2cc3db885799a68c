// Records of plans that come to the same with less: what becomes simpler, what does not, and that it gives the same
// bits.
#include <algorithm>

#include "cuda/plan_cases.h"
#include "cuda/plan_twin.h"
#include "executor/cuda/simplify.h"
#include "executor/plan_parts.h"

namespace tutti::cuda::test {
namespace {

using executor::BlockRecord;
using executor::BlockRecords;
using executor::DeviceCode;
using executor::DeviceOp;
using executor::DeviceOperand;
using plan::local;
using plan::OpKind;
using plan::Plan;
using plan::PlanBuilder;

constexpr std::uint64_t kEach = std::uint64_t{1} << 40;  // of a rank's memory, that is not there

executor::DeviceRecords records_of(const Plan& plan, int rank, executor::DeviceVariant variant = {.bytes = 960}) {
  const executor::DevicePlan device(std::make_shared<const Plan>(plan), rank, {64, 1UL << 20});
  executor::DeviceMemory nowhere;
  for (std::uint64_t r = 0; r < plan.ranks.size(); ++r) {
    nowhere.ranks.push_back(reinterpret_cast<std::byte*>((1 + r) * kEach));
  }
  nowhere.state = reinterpret_cast<std::byte*>(9 * kEach);
  return device.records(variant, nowhere);
}

std::string name_of(DeviceCode code) {
  static const char* const kNames[] = {"signal", "wait",    "copy", "reduce", "average", "pack",
                                       "pad",    "forward", "post", "unpack", "fold",    "await"};
  return kNames[static_cast<int>(code)];
}

// The first thread block of the rank in words: a join, the operation, "own" for each target of packets in the rank's
// own memory, and of a fold which source is plain.
std::string said(const Plan& plan, int rank, const executor::DeviceVariant& variant = {.bytes = 960}) {
  const executor::DeviceRecords records = records_of(plan, rank, variant);
  std::string text;
  for (std::uint32_t i = 0; i < records.blocks[0].count; ++i) {
    const DeviceOp& op = records.ops[i];
    text += (text.empty() ? "" : " ") + std::string(op.joins != 0 ? "| " : "") + name_of(op.code);
    for (std::uint32_t t = 0; t < op.targets; ++t) {
      const DeviceOperand& at = records.operands[op.first + op.sources + t];
      const bool packets = op.code == DeviceCode::kPack || op.code == DeviceCode::kPad;
      if (packets && at.value / kEach == static_cast<std::uint64_t>(rank) + 1) text += "-own";
    }
    if (op.code == DeviceCode::kFold && op.plain != executor::kNoPlain) text += std::to_string(op.plain);
  }
  return text;
}

// One thread block a rank, which speaks to its peers, and as `rest` says.
template <class Rest>
Plan one_shot_with(std::int32_t ranks, Rest rest) {
  PlanBuilder builder(plan::PlanCollective::kAllReduce, ranks, 2, 2, 2 * ranks + 2);
  builder.plan.protocol = plan::Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    plan::for_peers(r, ranks, [&](std::int32_t peer) {
      block.move_memory(OpKind::kPutPackets, {local(plan::kI, 0, 2)},
                        {block.remote(plan::kMemory, peer, plan::kS, 2 * r, 2)});
    });
    rest(builder, block, r);
  }
  return plan::finished(builder);
}
const PlanBuilder::Block& pack_own(const PlanBuilder::Block& block, std::int32_t r) {
  return block.move(OpKind::kCopyPackets, {local(plan::kI, 0, 2)}, {local(plan::kS, 2 * r, 2)});
}
const PlanBuilder::Block& unpack_first(const PlanBuilder::Block& block) {
  return block.move(OpKind::kUnpackPackets, {local(plan::kS, 0, 2)}, {local(plan::kO, 0, 2)});
}
const PlanBuilder::Block& add_others(const PlanBuilder::Block& block) {
  return block.move(OpKind::kReducePackets, {local(plan::kO, 0, 2), local(plan::kS, 2, 2)}, {local(plan::kO, 0, 2)});
}
// Of two ranks.
Plan plain_one_shot() {
  return one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
  });
}
constexpr const char* kSimplest[] = {"pack fold1", "pack fold0"};

void expect_same_bits(const Plan& plan, std::uint64_t seed = 1) {
  Twin twin(std::make_shared<const Plan>(plan), 1 << 12);
  for (const std::size_t bytes : {960, 1004}) {
    for (const int workers : {0, 3, 4}) {
      const PlanRequest request{bytes, DataType::kFloat32, ReduceOp::kSum, workers == 3, workers};
      EXPECT_EQ(twin.fault(request, seed++), "") << bytes << " bytes, " << workers << " lanes";
    }
  }
}

TEST(SimplifiedPlans, AOneShotPacksForPeersAndFoldsItsInput) {
  for (const std::int32_t ranks : {2, 3, 4}) {
    const Plan plan = plan::one_shot_all_reduce(ranks);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      const executor::DeviceRecords records = records_of(plan, rank);
      const auto peers = static_cast<std::size_t>(ranks) - 1;
      ASSERT_EQ(records.ops.size(), peers + 1);
      for (std::size_t i = 0; i <= peers; ++i) EXPECT_EQ(records.ops[i].joins, 0) << "record " << i;
      for (std::size_t i = 0; i < peers; ++i) EXPECT_EQ(records.ops[i].code, DeviceCode::kPack);
      const DeviceOp& fold = records.ops[peers];
      EXPECT_EQ(fold.code, DeviceCode::kFold);
      EXPECT_EQ(fold.sources, static_cast<std::uint32_t>(ranks));
      EXPECT_EQ(fold.targets, 1u);
      // Added up in the order 1, 2 .. 0.
      EXPECT_EQ(fold.plain, rank == 0 ? ranks - 1 : rank - 1);
      for (std::uint32_t s = 0; s < fold.sources; ++s) {
        const DeviceOperand& at = records.operands[fold.first + s];
        EXPECT_EQ(at.place, s == fold.plain ? 1 : executor::kFixed);
        EXPECT_EQ(at.peer, (s + 1) % fold.sources) << "who is to blame for source " << s;
      }
      EXPECT_EQ(records.operands[fold.first + fold.sources].place, 1 + executor::kUserBlocks);
      EXPECT_EQ(records.positions[peers].operation,
                static_cast<std::int32_t>(plan.ranks[0].blocks[0].operations.size()) - 1);
    }
  }
}

// The rest of a chunk is zeros from all peers, but none from itself.
TEST(SimplifiedPlans, AOneShotOfAnUnevenMessageWaitsForPeersAlone) {
  const Plan plan = plan::one_shot_all_reduce(3);
  EXPECT_EQ(said(plan, 0, {.bytes = 1004}), "pack pad pack pad fold2 await | await");
  EXPECT_EQ(said(plan, 1, {.bytes = 1004}), "pack pad pack pad fold0 await | await");
}

TEST(SimplifiedPlans, OneShotsHaveTheSameBits) {
  for (const std::int32_t ranks : {2, 3, 4}) {
    const auto plan = any_reduction(plan::one_shot_all_reduce(ranks));
    Twin twin(plan, 1 << 12);
    const std::pair<DataType, ReduceOp> kinds[] = {
        {DataType::kFloat32, ReduceOp::kSum},     {DataType::kBfloat16, ReduceOp::kAvg},
        {DataType::kFloat16, ReduceOp::kSum},     {DataType::kInt64, ReduceOp::kMin},
        {DataType::kFloat64, ReduceOp::kProduct}, {DataType::kComplex128, ReduceOp::kSum}};
    std::uint64_t seed = 0;
    for (const auto& [dtype, op] : kinds) {
      for (const std::size_t bytes : {16, 480, 1008 - 48}) {
        for (const int workers : {0, 3, 4}) {
          const PlanRequest request{bytes, dtype, op, seed % 2 == 1, workers};
          ASSERT_EQ(twin.fault(request, ++seed), "") << to_string(dtype) << ", " << ranks << " ranks, " << bytes;
        }
      }
    }
  }
}

TEST(SimplifiedPlans, OthersThatReadOrWriteThePacketsKeepThem) {
  ASSERT_EQ(said(plain_one_shot(), 0), kSimplest[0]);
  ASSERT_EQ(said(plain_one_shot(), 1), kSimplest[1]);
  expect_same_bits(plain_one_shot());
  // Another thread block of the rank reads one of its two chunks.
  const Plan shared = one_shot_with(2, [](PlanBuilder& builder, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
    builder.at(r, 1).move(OpKind::kUnpackPackets, {local(plan::kS, 2 * r + 1)}, {local(plan::kS, 5)});
  });
  ASSERT_EQ(said(shared, 0), "pack pack-own | fold");
  ASSERT_EQ(said(shared, 1), "pack pack-own | fold");
  expect_same_bits(shared);
  // It reads more than them, from before them on.
  for (const auto& [first, size] : {std::pair{1, 2}, std::pair{0, 4}}) {
    const Plan wide = one_shot_with(2, [&](PlanBuilder& builder, const PlanBuilder::Block& block, std::int32_t r) {
      add_others(unpack_first(pack_own(block, r)).nop());
      if (r == 1) {
        builder.at(r, 1)
            .move(OpKind::kUnpackPackets, {local(plan::kS, first, size)}, {local(plan::kS, 0, size)})
            .move(OpKind::kUnpackPackets, {local(plan::kS, 1)}, {local(plan::kS, 5)});
      }
    });
    ASSERT_EQ(said(wide, 1), "pack pack-own | fold") << "from " << first;
    expect_same_bits(wide);
  }
  // The peer writes into one of them.
  Plan written = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
    if (r == 0) {
      block.nop().move_memory(OpKind::kPutPackets, {local(plan::kI, 0)}, {block.remote(plan::kMemory, 1, plan::kS, 3)});
    }
  });
  ASSERT_EQ(said(written, 0).substr(0, 10), kSimplest[0]);
  ASSERT_EQ(said(written, 1), "pack pack-own | fold");
}

TEST(SimplifiedPlans, TwoReadersInABlockKeepThePackets) {
  const Plan twice = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
    block.nop().move(OpKind::kUnpackPackets, {local(plan::kS, 2 * r, 2)}, {local(plan::kS, 4, 2)});
  });
  ASSERT_EQ(said(twice, 0), "pack pack-own | fold | unpack");
  ASSERT_EQ(said(twice, 1), "pack pack-own | fold | unpack");
  expect_same_bits(twice);
}

// Packets that go on as packets, or come from two packs, or are taken in parts.
TEST(SimplifiedPlans, OtherReadersAndPartsKeepThePackets) {
  const Plan halves = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    for (const std::int32_t c : {0, 1}) {
      block.move(OpKind::kCopyPackets, {local(plan::kI, c)}, {local(plan::kS, 2 * r + c)});
    }
    add_others(unpack_first(block).nop());
  });
  ASSERT_EQ(said(halves, 0), "pack pack-own pack-own | fold");
  ASSERT_EQ(said(halves, 1), "pack pack-own pack-own | fold");
  expect_same_bits(halves);
  const Plan parts = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    pack_own(block, r);
    for (const std::int32_t c : {0, 1}) {
      block.move(OpKind::kUnpackPackets, {local(plan::kS, c)}, {local(plan::kO, c)});
    }
    add_others(block.nop());
  });
  ASSERT_EQ(said(parts, 0), "pack pack-own | unpack unpack | fold1");
  ASSERT_EQ(said(parts, 1), "pack pack-own unpack unpack | fold1") << "a fold takes one plain source";
  expect_same_bits(parts);
  const Plan forwarded = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    block.move(OpKind::kCopyPackets, {local(plan::kI, 0, 2)}, {local(plan::kS, 4, 2)});
    block.move_memory(OpKind::kReadPutPackets, {local(plan::kS, 4, 2)},
                      {block.remote(plan::kMemory, 1 - r, plan::kS, 4, 2)});
  });
  EXPECT_NE(said(forwarded, 0).find("pack pack-own | forward"), std::string::npos);
}

TEST(SimplifiedPlans, AnInputThatIsWrittenIsPackedFirst) {
  Plan in_place = plain_one_shot();
  in_place.in_place = true;
  ASSERT_EQ(said(in_place, 0, {.bytes = 960, .input_in_place = true}), "pack pack-own | fold");
  expect_same_bits(in_place);
  Plan says_so = plain_one_shot();
  says_so.writes_input = true;
  ASSERT_EQ(said(says_so, 0), "copy | signal pack pack-own | fold");
  expect_same_bits(says_so);
  // A peer does, and the plan says nothing of it.
  const Plan silent = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
    if (r == 0) block.nop().put(1, local(plan::kO, 0), plan::kI, 0);
  });
  ASSERT_EQ(said(silent, 1, {.bytes = 960, .mapped_input = true}), "pack pack-own | fold wait");
}

// In place, where the plan has two buffers: the input's copy is read in its stead.
TEST(SimplifiedPlans, AnInputThatLiesInTheOutputIsNotReadWhileItIsWritten) {
  const executor::DeviceVariant overlaps{.bytes = 960, .overlaps = true};
  ASSERT_EQ(said(plain_one_shot(), 0, overlaps), "copy | signal pack fold1");
  const executor::DeviceRecords copied = records_of(plain_one_shot(), 0, overlaps);
  const DeviceOp& fold = copied.ops.back();
  EXPECT_EQ(copied.operands[fold.first + fold.plain].place, executor::kFixed);
  EXPECT_EQ(copied.operands[fold.first + fold.plain].value, copied.operands[copied.ops[0].first + 1].value);
  // Where peers read it, it is the output that has a copy.
  const Plan read = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
    block.nop().move_memory(OpKind::kGet, {block.remote(plan::kMemory, 1 - r, plan::kI, 0)}, {local(plan::kS, 4)});
  });
  executor::DeviceVariant mapped{.bytes = 960, .mapped_input = true};
  ASSERT_EQ(said(read, 0, mapped), "pack fold1 wait | copy");
  mapped.overlaps = true;
  ASSERT_EQ(said(read, 0, mapped).substr(0, 20), "pack pack-own | fold");
}

TEST(SimplifiedPlans, FencesStay) {
  // Of the pack, the unpack, the nop, and the fold.
  const std::string expected[] = {"pack | pack-own | fold", "pack pack-own | unpack | fold1", kSimplest[0],
                                  "pack copy | await | fold1"};
  for (std::size_t i = 0; i < 4; ++i) {
    Plan plan = plain_one_shot();
    for (plan::Rank& rank : plan.ranks) rank.blocks[0].operations[1 + i].fence = true;
    ASSERT_EQ(said(plan, 0), expected[i]);
    expect_same_bits(plan);
  }
}

// What a nop joins stays joined, unless lanes need not know of each other.
TEST(SimplifiedPlans, JoinsOfThePlanStay) {
  // Somebody may hear that the packets were read, and no join is in between.
  const Plan told = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block, r)).nop());
    block.move_memory(OpKind::kPutPackets, {local(plan::kI, 0)}, {block.remote(plan::kMemory, 1 - r, plan::kS, 4)});
    block.move(OpKind::kUnpackPackets, {local(plan::kS, 4)}, {local(plan::kS, 5)});
  });
  ASSERT_EQ(said(told, 1), "pack pack-own unpack | fold1 pack unpack");
  expect_same_bits(told);
  // The block has done what others may want to be over.
  const Plan copied = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    block.copy(local(plan::kI, 0), local(plan::kS, 4));
    add_others(unpack_first(pack_own(block, r)).nop());
  });
  ASSERT_EQ(said(copied, 1), "pack copy | fold0");
  expect_same_bits(copied);
  // A join before the packs that go.
  const Plan before = one_shot_with(2, [](PlanBuilder&, const PlanBuilder::Block& block, std::int32_t r) {
    add_others(unpack_first(pack_own(block.nop(), r)).nop());
  });
  ASSERT_EQ(said(before, 1), "pack | fold0");
  expect_same_bits(before);
}

// Without a sum: what a rank packs for itself it copies.
TEST(SimplifiedPlans, PacketsThatBecomePlainAgainAreACopy) {
  PlanBuilder builder(plan::PlanCollective::kAllGather, 2, 1, 2, 2);
  builder.plan.protocol = plan::Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < 2; ++r) {
    const auto block = builder.at(r);
    block.move_memory(OpKind::kPutPackets, {local(plan::kI, 0)}, {block.remote(plan::kMemory, 1 - r, plan::kS, r)});
    block.move(OpKind::kCopyPackets, {local(plan::kI, 0)}, {local(plan::kS, r)});
    for (const std::int32_t q : {0, 1}) block.move(OpKind::kUnpackPackets, {local(plan::kS, q)}, {local(plan::kO, q)});
  }
  ASSERT_EQ(said(builder.plan, 0), "pack copy unpack");
  ASSERT_EQ(said(builder.plan, 1), "pack unpack | copy") << "lanes must know what packets have told others";
  expect_same_bits(builder.plan);
}

// Records by hand, where no plan makes them: packets that are named by where they lie.
BlockRecord record(DeviceCode code, const std::vector<std::uint64_t>& sources,
                   const std::vector<std::uint64_t>& targets) {
  BlockRecord made;
  made.op.code = code;
  made.op.bytes = 64;
  for (const std::uint64_t at : sources) made.sources.emplace_back().value = at;
  for (const std::uint64_t at : targets) made.targets.emplace_back().value = at;
  if (code == DeviceCode::kFold) made.op.plain = static_cast<std::uint8_t>(sources.size() - 1);
  return made;
}
constexpr std::uint64_t kInput = 1000, kOutput = 2000, kPackets = 10'000;
executor::Surroundings all_once() {
  return {{{executor::kFixed, kInput, kInput + 64, false}},
          [](const DeviceOperand& at, std::uint64_t) { return at.value >= kPackets; }};
}

TEST(SimplifiedRecords, OnlyTheOwnTargetOfAPackGoes) {
  BlockRecords block{record(DeviceCode::kPack, {kInput}, {500, kPackets, 600}),
                     record(DeviceCode::kUnpack, {kPackets}, {kOutput})};
  executor::simplify(block, all_once());
  ASSERT_EQ(block.size(), 2u);
  ASSERT_EQ(block[0].targets.size(), 2u);
  EXPECT_EQ(block[0].targets[0].value, 500u);
  EXPECT_EQ(block[0].targets[1].value, 600u);
  EXPECT_EQ(block[1].op.code, DeviceCode::kCopy);
  EXPECT_EQ(block[1].sources[0].value, kInput);
}

TEST(SimplifiedRecords, AFoldTakesOnePlainSource) {
  const BlockRecord packs[] = {record(DeviceCode::kPack, {kInput}, {kPackets}),
                               record(DeviceCode::kPack, {kInput}, {kPackets + 200})};
  BlockRecords two{packs[0], packs[1], record(DeviceCode::kUnpack, {kPackets}, {kOutput}),
                   record(DeviceCode::kFold, {kPackets + 200, kOutput}, {kOutput})};
  executor::simplify(two, all_once());
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].targets[0].value, kPackets + 200);
  EXPECT_EQ(two[1].op.plain, 1);
  // It has one of its own.
  BlockRecords own{packs[0], record(DeviceCode::kFold, {kPackets, 3000}, {kOutput})};
  executor::simplify(own, all_once());
  EXPECT_EQ(own.size(), 2u);
  EXPECT_EQ(own[1].op.plain, 1);
}

TEST(SimplifiedRecords, WhatIsNotTheSameStays) {
  const auto left = [](BlockRecord pack, BlockRecord unpack) {
    BlockRecords block{std::move(pack), std::move(unpack)};
    executor::simplify(block, all_once());
    return block.size();
  };
  const BlockRecord pack = record(DeviceCode::kPack, {kInput}, {kPackets});
  const BlockRecord unpack = record(DeviceCode::kUnpack, {kPackets}, {kOutput});
  EXPECT_EQ(left(pack, unpack), 1u);
  EXPECT_EQ(left(unpack, pack), 2u) << "read before it is written";
  BlockRecord shorter = unpack, moved = pack, half = unpack, beyond = pack, elsewhere = unpack;
  shorter.op.bytes = 32;
  moved.sources[0].value += 16;
  half.sources[0].extra = 7;
  beyond.op.bytes = 80;
  elsewhere.sources[0].place = 3;
  EXPECT_EQ(left(pack, shorter), 2u);
  EXPECT_EQ(left(moved, unpack), 2u) << "of memory that may be written";
  EXPECT_EQ(left(pack, half), 2u);
  EXPECT_EQ(left(beyond, unpack), 2u);
  EXPECT_EQ(left(pack, elsewhere), 2u);
}

TEST(SimplifiedRecords, AnUnpackOfAnotherRangeIsNoSourceOfTheFold) {
  const auto left = [](BlockRecord unpack, BlockRecord fold) {
    BlockRecords block{std::move(unpack), std::move(fold)};
    executor::simplify(block, {});
    return block.size();
  };
  const BlockRecord unpack = record(DeviceCode::kUnpack, {kPackets}, {kOutput});
  const BlockRecord fold = record(DeviceCode::kFold, {kPackets + 200, kOutput}, {kOutput});
  EXPECT_EQ(left(unpack, fold), 1u);
  EXPECT_EQ(left(unpack, record(DeviceCode::kFold, {kPackets + 200, kOutput}, {3000})), 2u) << "its result lies apart";
  EXPECT_EQ(left(unpack, record(DeviceCode::kFold, {kPackets + 200, 3000}, {3000})), 2u);
  EXPECT_EQ(left(unpack, record(DeviceCode::kFold, {kPackets + 200, 3000}, {kOutput})), 2u) << "it adds something else";
  BlockRecord shorter = unpack, joined = fold, sends = fold;
  shorter.op.bytes = 32;
  EXPECT_EQ(left(shorter, fold), 2u);
  sends.targets.emplace_back().value = 500;
  EXPECT_EQ(left(unpack, sends), 1u);
  sends.nop = true;
  EXPECT_EQ(left(unpack, sends), 2u) << "who gets its packets may count on all of the unpacking";
}

}  // namespace
}  // namespace tutti::cuda::test
