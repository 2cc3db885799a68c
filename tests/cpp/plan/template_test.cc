// Templates: what they make of rank 0, that a plan that is not symmetric is not folded, and that a bad one is refused.
#include "plan/template/template.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "plan/generators/generators.h"
#include "plan/links.h"
#include "plan/plan_builder.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "support/refusal.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

using test::refusal;

Template made(std::string_view family, std::int32_t ranks, std::int32_t ranks_per_host = 4) {
  return std::get<Template>(generate(family, {ranks, ranks_per_host, 0}));
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
}

TEST(Symmetry, AddsDigitByDigit) {
  const Symmetry ring({12});
  const Symmetry cube({2, 2, 2, 2});
  const Symmetry hosts({4, 3});
  for (std::int32_t rank = 0; rank < 12; ++rank) {
    for (std::int32_t by = 0; by < 12; ++by) {
      EXPECT_EQ(ring.moved(rank, by), (rank + by) % 12);
      EXPECT_EQ(cube.moved(rank, by), rank ^ by);
      EXPECT_EQ(hosts.moved(rank, by), (rank + by) % 4 + (rank / 4 + by / 4) % 3 * 4);
    }
  }
}

TEST(Symmetry, MovesChunksWithTheirBlocks) {
  const Symmetry ring({6}, {6, 1});
  EXPECT_EQ(ring.moved_chunks(0, 7, 1, 12, 5), 5);             // block 3, its second chunk, to block 2
  EXPECT_EQ(ring.moved_chunks(0, 2, 4, 12, 1), 4);             // two whole blocks
  EXPECT_EQ(ring.moved_chunks(0, 8, 4, 12, 1), std::nullopt);  // … would lie at both ends
  EXPECT_EQ(ring.moved_chunks(0, 1, 2, 12, 1), std::nullopt);  // halves of two blocks
  EXPECT_EQ(ring.moved_chunks(1, 7, 3, 12, 5), 7);             // stays
  EXPECT_EQ(ring.moved_chunks(0, 0, 1, 0, 1), std::nullopt);   // a buffer without chunks has none to move
  const Symmetry cube({2, 2, 2}, {8, 8});
  EXPECT_EQ(cube.moved_chunks(0, 2, 2, 8, 5), 6);  // blocks 2 and 3 xor 5 are 7 and 6
}

// What the algorithm says of every rank, by other means.
TEST(Template, RingIsWhatEachRankOfARingDoes) {
  for (const std::int32_t n : {2, 3, 5, 8, 13}) {
    const Plan plan = generate_written_out("ring", {n, 1, 0});
    ASSERT_EQ(plan.ranks.size(), static_cast<std::size_t>(n));
    for (std::int32_t r = 0; r < n; ++r) {
      const ThreadBlock& block = plan.ranks[r].blocks.at(0);
      std::vector<std::int32_t> passed;
      std::vector<std::int32_t> wanted;
      for (const Operation& op : block.operations) {
        if (op.sources.empty()) continue;
        EXPECT_EQ(place_of(plan, r, block, op, op.destinations.back()).rank, (r + 1) % n);
        passed.push_back(op.sources[0].index);
      }
      for (std::int32_t step = 0; step < n; ++step) wanted.push_back((r - step + n) % n);  // its own block first
      for (std::int32_t step = 1; step < n - 1; ++step) wanted.push_back((r + 1 - step + n) % n);  // then whole ones
      EXPECT_EQ(passed, wanted) << "rank " << r << " of " << n;
    }
  }
}

TEST(Template, CubeIsWhatEachRankOfACubeDoes) {
  const Plan plan = generate_written_out("recursive-doubling", {16, 1, 0});
  for (std::int32_t r = 0; r < 16; ++r) {
    EXPECT_EQ(plan.ranks[r].channels_of(ChannelKind::kMemory), (std::vector<std::int32_t>{r ^ 1, r ^ 2, r ^ 4, r ^ 8}));
  }
}

TEST(Template, FoldsWhatItHasWrittenOut) {
  for (const char* family : {"ring", "recursive-doubling", "halving-doubling", "two-level"}) {
    for (const std::int32_t ranks : {4, 8, 16, 32}) {
      const Template before = made(family, ranks);
      const Plan plan = written_out(before);
      EXPECT_EQ(folded(plan, before.symmetry), before) << family << ", " << ranks;
      EXPECT_EQ(written_out(folded(plan)), plan) << family << ", " << ranks;
    }
  }
}

TEST(Template, NumbersInTablesDoNotMatter) {
  const Template before = made("recursive-doubling", 8);
  Plan plan = written_out(before);
  Rank& rank = plan.ranks[3];
  auto& peers = rank.channels[static_cast<int>(ChannelKind::kMemory)];
  std::swap(peers[0], peers[2]);
  auto& ids = rank.blocks[0].channels[static_cast<int>(ChannelKind::kMemory)];
  std::swap(ids[0], ids[2]);
  plan.ranks[5].blocks[0].operations[3].origin = "elsewhere.py:1";
  EXPECT_EQ(folded(plan, before.symmetry), before);
}

TEST(Template, BrokenSymmetryIsNamedByRankAndOperation) {
  const Template ring = made("ring", 8);
  const auto broken = [&ring](auto change) {
    Plan plan = written_out(ring);
    change(plan.ranks[5]);
    return refusal([&] { folded(plan, ring.symmetry); }) + refusal([&] { folded(plan); });
  };
  const auto operation = [](Rank& rank, OpKind kind) -> Operation& {
    for (Operation& op : rank.blocks[0].operations) {
      if (op.kind == kind) return op;
    }
    throw_error(ErrorKind::kInternal, "no such operation");
  };
  expect_says(broken([&](Rank& rank) { operation(rank, OpKind::kReduceSend).sources[1].index = 5; }),
              "/gpus/5/threadblocks/0/ops/8: source 1 of this res is not rank 0's");
  expect_says(broken([&](Rank& rank) { operation(rank, OpKind::kPut).destinations[0].index = 1; }),
              "/gpus/5/threadblocks/0/ops/3: destination 0 of this put");
  expect_says(broken([&](Rank& rank) { operation(rank, OpKind::kSignal).kind = OpKind::kRelaxedSignal; }),
              "/gpus/5/threadblocks/0/ops/0: the kind of this rlxsignal");
  expect_says(broken([&](Rank& rank) {
                rank.channels[static_cast<int>(ChannelKind::kMemory)] = {6, 4};
              }),
              "/gpus/5/threadblocks/0/ops/0: channel 0 of this signal");
  expect_says(broken([&](Rank& rank) { rank.blocks[0].operations.pop_back(); }),
              "/gpus/5/threadblocks/0: 72 operations");
  expect_says(broken([&](Rank& rank) { rank.chunks[2] = 9; }), "/gpus/5: its chunks");
  expect_says(refusal([] { folded(tree_all_reduce(8)); }), "not alike");
  expect_says(refusal([&] { folded(written_out(ring), Symmetry({4})); }), "dims for 4 ranks, the plan has 8");
}

TEST(Template, ComesBackFromItsText) {
  for (const char* family : {"ring", "halving-doubling", "two-level"}) {
    const Template before = made(family, 16);
    const std::string text = write_template(before);
    EXPECT_EQ(std::get<Template>(read_plan_or_template(text)), before);
    EXPECT_EQ(read_plan(text), written_out(before));
    EXPECT_LT(text.size(), write_plan(written_out(before)).size() / 8);
  }
}

TEST(Template, BadOnesAreRefused) {
  EXPECT_THROW(Symmetry({0, 4}), Error);
  EXPECT_THROW(Symmetry({4096, 4096}), Error);
  EXPECT_THROW(Symmetry({8, 4}, {4, 1}), Error);  // 4 is no product of the first dims
  const std::string text = write_template(made("ring", 8));
  const auto with = [&text](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return refusal([&] { read_plan(changed.replace(at, from.size(), to)); });
  };
  expect_says(with("\"input_blocks\": 8", "\"input_blocks\": 3"), "product of the first dims");
  expect_says(with("\"input_blocks\": 8", "\"blocks\": 8"), "/template");
  expect_says(with("\"dims\": [\n      8\n    ]", "\"dims\": [4]"), "product of the first dims");
  expect_says(with("\"dims\": [\n      8\n    ]", "\"dims\": [5]"), "product of the first dims");
  Template wide = made("ring", 8);
  Operation& op = wide.plan.ranks[0].blocks[0].operations[8];
  op.sources[0].index = 6;
  op.sources[0].size = 2;  // on rank 1 these chunks would lie at both ends
  expect_says(refusal([&] { written_out(wide); }),
              "/gpus/0/threadblocks/0/ops/8/src_buff/0: chunks 6 to 7 would not lie side by side on rank 1");
}

// Also in rounds that a simulation would leave out; nothing is taken modulo the template's numbers.
TEST(Template, WhatIsOutOfRangeIsRefusedAtItsPath) {
  const Template ring = made("ring", 8);
  const auto says = [&ring](const std::string& part, auto change) {
    Template wrong = ring;
    change(wrong.plan.ranks[0]);
    expect_says(refusal([&] { written_out(wrong); }), part);
    expect_says(refusal([&] { read_plan_or_template(write_template(wrong)); }), part);
  };
  const std::string op = "/gpus/0/threadblocks/0/ops/8/";
  says(op + "src_buff/0/index: chunks 15 to 15 of buffer \"i\" of rank 0, which has 8",
       [](Rank& rank) { rank.blocks[0].operations[8].sources[0].index += 8; });
  says(op + "dst_buff/1/index: chunks 9 to 9 of buffer \"s\" of rank 1, which has 7",
       [](Rank& rank) { rank.blocks[0].operations[8].destinations[1].index += 8; });
  says(op + "dst_buff/1/buffer_id: 7 names no remote buffer",
       [](Rank& rank) { rank.blocks[0].operations[8].destinations[1].id = 7; });
  says("/gpus/0/remote_buffers/0/rank: 9 names no rank; there are 8",
       [](Rank& rank) { rank.remote_buffers[0].rank += 8; });
  says("/gpus/0/channels: 9 names no rank",
       [](Rank& rank) { rank.channels[static_cast<int>(ChannelKind::kMemory)][0] = 9; });
}

// Symmetric, but of no use: that a template says so is no proof.
TEST(Template, IsVerifiedAsItIsWrittenOut) {
  const Template ring = made("ring", 8);
  EXPECT_EQ(verify(written_out(ring)).outcome, Outcome::kProven);
  const Verdict apart = verify(written_out({ring.plan, Symmetry({8, 2}, {8, 8})}));  // two rings that never meet
  EXPECT_EQ(apart.fault.kind, FaultKind::kWrongResult);
  expect_says(apart.fault.message, "of 8 ranks of call 1; rank 8's is missing");
  const Verdict still = verify(written_out({ring.plan, Symmetry({8})}));  // all start with the same block
  EXPECT_EQ(still.outcome, Outcome::kRejected);
  EXPECT_FALSE(still.fault.sites.empty());
}

TEST(Template, TooLargeToWriteOutIsSaid) {
  const Template ring = made("ring", 4096);
  EXPECT_GT(operations_of(ring), 100'000'000);
  expect_says(refusal([&] { written_out(ring); }), "too many to hold");
}

}  // namespace
}  // namespace tutti::plan
