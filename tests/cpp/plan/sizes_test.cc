// Chunks to bytes: no byte is lost or touched past the end, whatever the size.
#include "plan/sizes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "plan/plan_builder.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::int64_t kCounts[] = {0, 1, 15, 16, 17, 31, 100, 255, 4096, 4097, 1000003};

TEST(Sizes, ChunksAreRoundedUpAndClamped) {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 4, 4, 2);
  for (int k = 0; k < 4; ++k) builder.at(0).copy(local(kI, k), local(kO, k));
  const Sizes sizes(builder.plan, 100);
  EXPECT_EQ(sizes.chunk_bytes(), 32);
  const ThreadBlock& block = builder.plan.ranks[0].blocks[0];
  const std::vector<std::int64_t> expected{32, 32, 32, 4};
  for (int k = 0; k < 4; ++k) {
    const auto moves = sizes.moves_of(0, block, block.operations[k]);
    ASSERT_EQ(moves.size(), 1u);
    EXPECT_EQ(moves[0].bytes, expected[k]);
    EXPECT_EQ(moves[0].sources[0], 32 * k);
  }
  // 17 bytes leave nothing for the chunks 2 and 3.
  EXPECT_TRUE(Sizes(builder.plan, 17).moves_of(0, block, block.operations[2]).empty());
}

// All chunks of a block, moved one by one, make the block exactly once.
TEST(Sizes, ChunksCoverTheirBlocks) {
  for (const std::int64_t bytes : kCounts) {
    PlanBuilder builder(PlanCollective::kAllToAll, 3, 9, 9, 0);
    for (int k = 0; k < 9; ++k) builder.at(0).copy(local(kI, k), local(kO, k));
    const Sizes sizes(builder.plan, bytes);
    std::int64_t next = 0;
    for (const Operation& op : builder.plan.ranks[0].blocks[0].operations) {
      for (const Move& move : sizes.moves_of(0, builder.plan.ranks[0].blocks[0], op)) {
        EXPECT_EQ(move.sources[0], next);
        EXPECT_EQ(move.destinations[0], next);
        next += move.bytes;
      }
    }
    EXPECT_EQ(next, 3 * bytes);
  }
}

TEST(Sizes, RangesAcrossBlocksSplit) {
  PlanBuilder builder(PlanCollective::kAllGather, 2, 2, 4, 4);
  builder.at(0).copy(local(kO, 1, 2), local(kS, 1, 2));
  const Sizes sizes(builder.plan, 40);  // c = 32: chunks of 32 and 8 bytes
  const ThreadBlock& block = builder.plan.ranks[0].blocks[0];
  const auto moves = sizes.moves_of(0, block, block.operations[0]);
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].bytes, 8);
  EXPECT_EQ(moves[0].sources[0], 32);
  EXPECT_EQ(moves[0].destinations[0], 32);
  EXPECT_EQ(moves[1].bytes, 32);
  EXPECT_EQ(moves[1].sources[0], 40);
  EXPECT_EQ(moves[1].destinations[0], 64);
}

TEST(Sizes, PartsOfAGroupCoverTheirRange) {
  for (const std::int64_t bytes : kCounts) {
    for (const std::int32_t group : {1, 2, 3, 7}) {
      PlanBuilder builder(PlanCollective::kAllReduce, 2, 5, 5, 0);
      for (std::int32_t i = 0; i < group; ++i) {
        Operation op;
        op.kind = OpKind::kCopy;
        op.sources = {local(kI, 1, 3)};
        op.destinations = {local(kO, 1, 3)};
        op.part = GroupPart{i, group};
        builder.at(0).add(op);
      }
      const Sizes sizes(builder.plan, bytes);
      std::int64_t next = std::min(bytes, sizes.chunk_bytes());
      for (const Operation& op : builder.plan.ranks[0].blocks[0].operations) {
        for (const Move& move : sizes.moves_of(0, builder.plan.ranks[0].blocks[0], op)) {
          EXPECT_EQ(move.sources[0], next);
          next += move.bytes;
        }
      }
      EXPECT_EQ(next, std::min(bytes, 4 * sizes.chunk_bytes()));
    }
  }
}

TEST(Sizes, PacketsLieBesidePlainScratch) {
  PlanBuilder builder(PlanCollective::kAllReduce, 1, 2, 2, 3);
  builder.at(0).copy(local(kI, 0), local(kS, 2)).move(OpKind::kCopyPackets, {local(kI, 1)}, {local(kS, 1)});
  const Sizes sizes(builder.plan, 64);
  const ThreadBlock& block = builder.plan.ranks[0].blocks[0];
  EXPECT_EQ(sizes.moves_of(0, block, block.operations[0])[0].destinations[0], 64);
  EXPECT_EQ(sizes.moves_of(0, block, block.operations[1])[0].destinations[0], 2 * 32) << "from where packets begin";
  EXPECT_EQ(sizes.scratch_bytes(0), 3 * 32 + 3 * 64);
}

Plan looping(std::int32_t chunks, std::int64_t unit, bool reuse) {
  PlanBuilder builder(PlanCollective::kAllReduce, 1, chunks, chunks, 1);
  builder.plan.reuse_resources = reuse;
  Operation copy;
  copy.kind = OpKind::kCopy;
  copy.sources = {local(kI, 0)};
  copy.destinations = {local(kS, 0)};
  Operation loop;
  loop.kind = OpKind::kPipeline;
  loop.iteration = {unit, 1};
  loop.body = {copy};
  builder.at(0).add(loop);
  return builder.plan;
}

TEST(Sizes, IterationsCoverTheirChunks) {
  for (const std::int64_t bytes : kCounts) {
    const Plan plan = looping(1, 48, false);
    const Sizes sizes(plan, bytes);
    const ThreadBlock& block = plan.ranks[0].blocks[0];
    const Operation& loop = block.operations[0];
    std::int64_t next = 0;
    for (std::int64_t i = 0; i < sizes.iterations(loop.iteration); ++i) {
      for (const Move& move : sizes.moves_of(0, block, loop.body[0], loop.iteration, i)) {
        EXPECT_EQ(move.sources[0], next);
        EXPECT_LE(move.bytes, 48);
        next += move.bytes;
      }
    }
    EXPECT_EQ(next, bytes);
  }
}

TEST(Sizes, ReusedScratchWrapsByWholeUnits) {
  const std::int64_t unit = 3 << 20;
  const Plan plan = looping(1, unit, true);
  const Sizes sizes(plan, 10 * kReusedScratchBytes);
  const ThreadBlock& block = plan.ranks[0].blocks[0];
  const Operation& loop = block.operations[0];
  const std::int64_t ring = kReusedScratchBytes / unit * unit;
  EXPECT_EQ(sizes.scratch_bytes(0), ring);
  std::int64_t next = 0;
  for (std::int64_t i = 0; i < sizes.iterations(loop.iteration); ++i) {
    for (const Move& move : sizes.moves_of(0, block, loop.body[0], loop.iteration, i)) {
      EXPECT_EQ(move.sources[0], next);
      EXPECT_EQ(move.destinations[0], next % ring);
      EXPECT_LE(move.destinations[0] + move.bytes, ring);
      next += move.bytes;
    }
  }
  EXPECT_EQ(next, 10 * kReusedScratchBytes);
}

TEST(Sizes, ReusedScratchOutsideLoopsIsBounded) {
  PlanBuilder builder(PlanCollective::kAllReduce, 1, 1, 1, 1);
  builder.plan.reuse_resources = true;
  builder.at(0).copy(local(kI, 0), local(kS, 0));
  EXPECT_NO_THROW(Sizes(builder.plan, kReusedScratchBytes));
  EXPECT_THROW(Sizes(builder.plan, kReusedScratchBytes + 16), Error);
}

TEST(Sizes, AreOf64Bits) {
  PlanBuilder builder(PlanCollective::kAllGather, 4, 1, 4, 0);
  builder.at(0).copy(local(kI, 0), local(kO, 3));
  const std::int64_t bytes = (std::int64_t{1} << 40) + 3;
  const Sizes sizes(builder.plan, bytes);
  const ThreadBlock& block = builder.plan.ranks[0].blocks[0];
  const auto moves = sizes.moves_of(0, block, block.operations[0]);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].bytes, bytes);
  EXPECT_EQ(moves[0].destinations[0], 3 * bytes);
}

}  // namespace
}  // namespace tutti::plan
