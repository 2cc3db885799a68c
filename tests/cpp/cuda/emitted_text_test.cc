// What stands in the source of a compiled plan, against its records: each of them once, in order, with its joins,
// fences, places, words and counts. Loops are read turn by turn, and what several thread blocks share block by block.
// Nothing is compiled: what a missing join or fence does shows in few runs, and that it is missing in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emitted_reader.h"
#include "cuda/plan_cases.h"
#include "executor/cuda/alike.h"
#include "executor/cuda/emit.h"
#include "executor/cuda/rolled.h"
#include "plan/plan_builder.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

using executor::DeviceCode;
using executor::DeviceOp;
using executor::DeviceOperand;

constexpr std::uint64_t kOwn = device::kMaxRanks + 1;

// The records of one thread block, in the words of read_block().
class Expected {
 public:
  Expected(const executor::DevicePlan& plan, const executor::DeviceRecords& records, std::size_t block)
      : plan_(plan), records_(records) {
    const executor::DeviceBlock& own = records.blocks[block];
    for (std::uint32_t i = own.first; i < own.first + own.count; ++i) {
      const DeviceOp& op = records.ops[i];
      for (std::uint32_t k = 0; is_word(op) && k < op.sources; ++k) count_.emplace(operand(op, k).extra, 0);
    }
    int next = 0;
    for (auto& [slot, index] : count_) index = next++;
    for (std::uint32_t i = own.first; i < own.first + own.count; ++i) add(records.ops[i]);
    lines.push_back("join");
    for (const auto& [slot, index] : count_) {
      counts.push_back(joined("count", index, offset_of(slot)));
      lines.push_back(joined("used", index, offset_of(slot), done_[slot]));
    }
  }

  Lines lines, counts;

 private:
  static bool is_word(const DeviceOp& op) { return op.code == DeviceCode::kSignal || op.code == DeviceCode::kWait; }
  const DeviceOperand& operand(const DeviceOp& op, std::uint32_t i) const { return records_.operands[op.first + i]; }
  std::uint64_t offset_of(std::uint32_t slot) const { return plan_.slots_offset() + 8 * std::uint64_t{slot}; }

  static std::string name_of(const DeviceOp& op) {
    switch (op.code) {
      case DeviceCode::kSignal:
        return "signal";
      case DeviceCode::kWait:
        return "wait";
      case DeviceCode::kCopy:
        return "copy";
      case DeviceCode::kReduce:
        return "reduce";
      case DeviceCode::kAverage:
        return "average";
      case DeviceCode::kPack:
      case DeviceCode::kPad:
        return op.sources == 0 ? "pad" : "pack";
      case DeviceCode::kForward:
        return "forward";
      case DeviceCode::kCopyPackets:
        return "copy_packets";
      case DeviceCode::kUnpack:
        return "unpack";
      case DeviceCode::kFold:
        return "fold";
      case DeviceCode::kAwait:
        return "await_packets";
    }
    return "?";
  }
  // Whether somebody is to blame if it does not come.
  static bool awaited(const DeviceOp& op, std::uint32_t i) {
    const bool first =
        op.code == DeviceCode::kForward || op.code == DeviceCode::kUnpack || op.code == DeviceCode::kAwait;
    return (first && i == 0) || (op.code == DeviceCode::kFold && i < op.sources && i != op.plain);
  }
  std::string place(const DeviceOperand& at) const {
    if (at.place == executor::kFixed) {
      const std::uint64_t space = at.value >> executor::kSpaceBits;
      return joined("memory", space - 1, at.value - (space << executor::kSpaceBits), std::uint64_t{at.extra} * 16);
    }
    if (at.place >= executor::kPeers) {
      const int index = at.place - executor::kPeers, rank = index / executor::kUserBlocks;
      return joined(rank < device::kMaxRanks ? "peer_input" : "peer_output", rank % device::kMaxRanks,
                    index % executor::kUserBlocks, at.value);
    }
    const int index = at.place - 1;
    return joined(index < executor::kUserBlocks ? "input" : "output", index % executor::kUserBlocks, at.value);
  }
  std::string word(const DeviceOperand& at) {
    const std::uint64_t space = at.value >> executor::kSpaceBits;
    const std::uint64_t offset = at.value - (space << executor::kSpaceBits);
    const std::string counted = joined(count_[at.extra], ++done_[at.extra]);
    return space == kOwn ? joined("own_word", offset) + counted
                         : joined("word_of_rank", space - 1, offset) + counted + joined(at.peer);
  }
  void add(const DeviceOp& op) {
    if (op.joins != 0) lines.push_back("join");
    if (op.fences != 0) lines.push_back("fence");
    std::string line = name_of(op) + (is_word(op) ? "" : joined("", op.bytes));
    for (std::uint32_t i = 0; i < op.sources + op.targets; ++i) {
      const DeviceOperand& at = operand(op, i);
      line += "|" + (is_word(op) ? word(at) : (awaited(op, i) ? joined("packets", at.peer) : "") + place(at));
    }
    lines.push_back(line);
    if (op.fences != 0) lines.push_back("fence");
  }

  const executor::DevicePlan& plan_;
  const executor::DeviceRecords& records_;
  std::map<std::uint32_t, int> count_;  // by slot
  std::map<std::uint32_t, std::uint64_t> done_;
};

// What has been compared.
struct Seen {
  std::size_t shared = 0;       // blocks that run another's function
  std::size_t with_tables = 0;  // with numbers from a table
} seen;

void compare(const plan::NamedPlan& named, int rank, const executor::DeviceLimits& limits, std::size_t wanted,
             bool mapped = false) {
  const executor::DevicePlan device(named.plan, rank, limits);
  // A plan that is in place reads, first of all, what a call in place has in its output.
  const executor::EmitRequest request{{.bytes = std::min(wanted, device.segment_bytes()),
                                       .input_in_place = named.plan->in_place,
                                       .mapped_input = mapped && device.maps_input(),
                                       .mapped_output = mapped && device.maps_output()}};
  const auto at = [](std::uint64_t space) { return reinterpret_cast<std::byte*>(space << executor::kSpaceBits); };
  executor::DeviceMemory memory{{}, at(kOwn)};
  for (std::size_t r = 0; r < named.plan->ranks.size(); ++r) memory.ranks.push_back(at(1 + r));
  const executor::DeviceRecords records = device.records(request.variant, memory);
  const executor::PlanSource source = executor::emit(device, request);
  for (std::size_t block = 0; block < records.blocks.size(); ++block) {
    const Expected expected(device, records, block);
    const Lines lines = read_block(source.block, block);
    ASSERT_EQ(lines, expected.lines) << named.name << ", rank " << rank << ", block " << block;
    const Early early = read_prepare(source.block, block);
    ASSERT_EQ(early.counts, expected.counts) << named.name << ", rank " << rank << ", block " << block;
    if (function_of(source.block, block) != block) ++seen.shared;
    const std::string number = std::to_string(function_of(source.block, block));
    const std::size_t begin = source.block.find("bool block_" + number + "()");
    if (!names_of(source.block, block, begin).apart.empty()) ++seen.with_tables;
    const std::string function = source.block.substr(begin);
    const bool loads = function.substr(0, function.find("return true;")).find("_early(") != std::string::npos;
    ASSERT_EQ(loads, !early.load.empty()) << named.name;
    if (!loads) continue;
    // Nothing comes before it that might write there, and all of it is one item of each lane.
    const std::string& first = lines.front();
    const std::string place = early.load.substr(early.load.find(' '));
    ASSERT_EQ(first.substr(first.find(' '), place.size()), place) << named.name;
    ASSERT_NE(early.load.find("|input "), std::string::npos) << named.name << early.load;
    // As the lanes of the operation share it.
    ASSERT_EQ(early.load.starts_with("load_pieces"), first.starts_with("pack")) << named.name << first;
    ASSERT_LE(records.ops[records.blocks[block].first].bytes, 16u * static_cast<unsigned>(source.workers));
  }
}

// The plan with a fence at each operation.
plan::NamedPlan fenced(const plan::NamedPlan& named) {
  plan::Plan plan = *named.plan;
  for (plan::Rank& rank : plan.ranks) {
    for (plan::ThreadBlock& block : rank.blocks) {
      for (plan::Operation& op : block.operations) {
        op.fence = true;
        for (plan::Operation& inner : op.body) inner.fence = true;
      }
    }
  }
  return {named.name + ", fenced", std::make_shared<const plan::Plan>(std::move(plan))};
}

// In place a call's input is its output, which blocks write.
TEST(EmittedText, LoadsEarlyWhatIsOfTheInputAlone) {
  plan::Plan in_place = plan::packet_all_reduce(2);
  in_place.in_place = true;
  compare({"in place", std::make_shared<const plan::Plan>(in_place)}, 0, {64, 1UL << 20}, 256);
}

// A loop reads other bytes at each turn, so it has no first item that could lie ready. Both kinds of loads.
TEST(EmittedText, LoadsNothingEarlyForALoop) {
  for (const plan::OpKind put : {plan::OpKind::kPut, plan::OpKind::kPutPackets}) {
    constexpr std::int32_t kChunks = 4;
    const bool packets = put == plan::OpKind::kPutPackets;
    plan::PlanBuilder builder(plan::PlanCollective::kAllGather, 2, kChunks, 2 * kChunks, packets ? kChunks : 0);
    for (const std::int32_t r : {0, 1}) {
      const auto block = builder.at(r);
      for (std::int32_t c = 0; c < kChunks; ++c) {
        const plan::Operand to = packets ? block.remote(plan::ChannelKind::kMemory, 1 - r, plan::kS, c)
                                         : block.remote(plan::ChannelKind::kMemory, 1 - r, plan::kO, r * kChunks + c);
        block.move_memory(put, {plan::local(plan::kI, c)}, {to});
      }
    }
    builder.plan.double_scratch = packets;
    const auto shared = std::make_shared<const plan::Plan>(std::move(builder.plan));
    const executor::DevicePlan device(shared, 0, {64, 1UL << 20});
    const std::string text = executor::emit(device, {{.bytes = 4096}}).block;
    const std::size_t loop = text.find("turn < " + std::to_string(kChunks)), first = text.find("(bytes<1024>");
    ASSERT_LT(loop, first) << text;
    ASSERT_LT(first, text.size()) << text;
    compare({packets ? "a loop of packs" : "a loop of copies", shared}, 0, {64, 1UL << 20}, 4096);
  }
}

TEST(EmittedText, HasEachRecordAsItStands) {
  seen = {};
  for (const std::int32_t ranks : {2, 4}) {
    for (const auto& named : plan::plans_of_every_operation(ranks)) {
      for (int rank = 0; rank < ranks; ++rank) {
        compare(named, rank, {64, 1UL << 20}, 4096);
        compare(named, rank, {64, 1UL << 20}, 4096, /*mapped=*/true);
      }
      compare(fenced(named), 1, {64, 1UL << 20}, 4096);
    }
  }
  for (const auto& named : programs()) {
    for (const std::size_t bytes : {1004, 40'000}) compare(named, 1, {64, 1UL << 20}, bytes);
  }
  for (const CompiledRequest& one : compiled_requests()) compare(one.plan, 0, one.limits, one.request.bytes);
  EXPECT_GT(seen.shared, 0u);
  EXPECT_GT(seen.with_tables, 0u);
}

std::vector<std::string> texts_with(const std::vector<std::uint64_t>& numbers, const std::string& more = "") {
  std::vector<std::string> texts;
  for (const std::uint64_t number : numbers) texts.push_back("f(" + executor::varying(number) + ")" + more);
  return texts;
}

TEST(EmittedText, NumbersOfBlocksThatAreAlike) {
  const auto merged = [](const std::vector<std::uint64_t>& numbers) {
    const auto all = executor::merge_alike(texts_with(numbers), 100);
    EXPECT_EQ(all.size(), 1u);
    EXPECT_EQ(all[0].blocks.size(), numbers.size());
    return all[0];
  };
  EXPECT_EQ(merged({7, 7, 7}).text, "f(7)");
  EXPECT_EQ(merged({0, 48, 96}).text, "f(48 * n)");
  EXPECT_EQ(merged({7, 55, 103}).text, "f(7 + 48 * n)");
  EXPECT_EQ(merged({96, 48, 0}).text, "f(96 - 48 * n)");
  const auto odd = merged({5, 2, 9});
  EXPECT_EQ(odd.text, "f(2 + apart[0])");
  EXPECT_EQ(odd.rows, (std::vector<std::vector<std::uint64_t>>{{3}, {0}, {7}}));
  const auto aligned = merged({32, 0, 128});
  EXPECT_EQ(aligned.text, "f(16 * apart[0])");
  EXPECT_EQ(aligned.rows, (std::vector<std::vector<std::uint64_t>>{{2}, {0}, {8}}));
}

TEST(EmittedText, BlocksThatAreAlikeAreWrittenOnce) {
  // The first, fourth and fifth of five: rows of the table count all from the first on.
  std::vector<std::string> texts = texts_with({100, 1, 2, 400, 600});
  texts[1] = texts[2] = "g()";
  const auto all = executor::merge_alike(texts, 100);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].blocks, (std::vector<std::size_t>{0, 3, 4}));
  EXPECT_EQ(all[0].text, "f(100 + apart[0])");
  EXPECT_EQ(all[0].rows, (std::vector<std::vector<std::uint64_t>>{{0}, {0}, {0}, {300}, {500}}));
  EXPECT_EQ(all[1].blocks, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(all[1].text, "g()");
  // Numbers that differ in the same way share a column; a table that is too large is none.
  std::vector<std::string> twice;
  for (const std::uint64_t number : {3, 1, 8}) {
    twice.push_back(executor::varying(number) + ", " + executor::varying(number + 20) + executor::varying_offset(0));
  }
  EXPECT_EQ(executor::merge_alike(twice, 3)[0].text, "1 + apart[0], 21 + apart[0]");
  const auto apart = executor::merge_alike(twice, 2);
  ASSERT_EQ(apart.size(), 3u);
  EXPECT_EQ(apart[2].text, "8, 28");
  EXPECT_TRUE(apart[2].rows.empty());
  EXPECT_EQ(executor::merge_alike(texts_with({1}, ", step" + executor::varying_offset(2)), 0)[0].text, "f(1), step, 2");
}

// What a plan's file says of itself stands in comments.
TEST(EmittedText, WordsOfAPlanNameNoTable) {
  plan::Plan plan = plan::packet_all_reduce(2);
  plan.ranks[0].blocks[0].operations[0].origin = "apart[0] * n";
  const executor::DevicePlan device(std::make_shared<const plan::Plan>(plan), 0, {64, 1UL << 20});
  executor::EmitRequest request;
  request.variant.bytes = 256;
  const std::string text = executor::emit(device, request).block;
  EXPECT_NE(text.find("apart[0] * n"), std::string::npos);
  EXPECT_EQ(text.find("kApart"), std::string::npos);
}

// Of blocks that share a function, the operations of one count.
TEST(EmittedText, MoreThanAKernelMayHaveIsRefused) {
  const auto emitted = [](std::size_t operations, std::size_t blocks, bool different = false) {
    plan::Plan plan = plan::packet_all_reduce(2);
    plan::ThreadBlock& block = plan.ranks[0].blocks[0];
    const std::vector<plan::Operation> kinds = block.operations;
    block.operations.clear();
    // In no order that repeats.
    std::uint64_t state = 1;
    for (std::size_t i = 0; i < operations; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      block.operations.push_back(kinds[(state >> 33) % kinds.size()]);
    }
    plan.ranks[0].blocks.assign(blocks, plan::ThreadBlock(block));
    if (different) std::ranges::reverse(plan.ranks[0].blocks.back().operations);
    const executor::DevicePlan device(std::make_shared<const plan::Plan>(std::move(plan)), 0, {64, 1UL << 20});
    executor::EmitRequest request;
    request.variant.bytes = 256;
    return executor::emit(device, request);
  };
  EXPECT_NO_THROW(emitted(600, 1));
  EXPECT_NO_THROW(emitted(600, 8));
  const auto refused = [&](std::size_t operations, std::size_t blocks, bool different) {
    try {
      emitted(operations, blocks, different);
      ADD_FAILURE() << operations << " operations were taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(e.what()).find("more than 1024 different operations"), std::string::npos) << e.what();
    }
  };
  refused(3000, 1, false);
  EXPECT_NO_THROW(emitted(1000, 1));
  refused(1000, 2, true);
}

// However many there are: what a block awaits where all meet needs no table.
TEST(EmittedText, ManyBlocksShareAFunction) {
  plan::Plan plan = plan::packet_all_reduce(2);
  const plan::ThreadBlock block = plan.ranks[0].blocks[0];
  plan.ranks[0].blocks.assign(100, block);
  const executor::DevicePlan device(std::make_shared<const plan::Plan>(std::move(plan)), 0, {128, 1UL << 20});
  executor::EmitRequest request;
  request.variant.bytes = 16 * 100;  // as much for each block to divide
  request.variant.averages = true;   // behind a barrier of all of them
  const std::string text = executor::emit(device, request).block;
  std::size_t functions = 0;
  for (std::size_t at = text.find("bool block_"); at != std::string::npos; at = text.find("bool block_", at + 1)) {
    ++functions;
  }
  EXPECT_EQ(functions, 1U);
  EXPECT_NE(text.find("wait("), std::string::npos) << "they meet nowhere";
  EXPECT_EQ(text.find("kApart"), std::string::npos);
}

// Lines of a program's file are named in comments.
TEST(EmittedText, BlocksMayDifferInComments) {
  const std::vector<std::string> texts = {"  // 1\ng(" + executor::varying(1) + ");\n",
                                          "  // 22\ng(" + executor::varying(2) + ");\n", "  // 1\nh(1);\n"};
  const auto all = executor::merge_alike(texts, 100);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].blocks, (std::vector<std::size_t>{0, 1}));
  EXPECT_NE(all[0].text.find("// 1\ng("), std::string::npos) << all[0].text;
}

// Three records that differ in nothing are a loop; where the last differs in anything, they are not.
TEST(EmittedText, LoopsAreOfRecordsThatDifferInValuesAlone) {
  DeviceOp alike;
  alike.code = DeviceCode::kCopy;
  alike.sources = alike.targets = 1;
  alike.bytes = 16;
  const auto turns_with = [&](auto change) {
    std::vector<DeviceOp> ops(3, alike);
    std::vector<DeviceOperand> operands(12);
    for (std::uint32_t i = 0; i < 3; ++i) {
      ops[i].first = 4 * i;
      for (std::uint32_t k = 0; k < 4; ++k) operands[4 * i + k].value = 64 * i;
    }
    change(ops[2], operands[8]);
    return executor::roll(ops, operands)[0].turns;
  };
  EXPECT_EQ(turns_with([](DeviceOp&, DeviceOperand&) {}), 3u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.code = DeviceCode::kReduce; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.joins = 1; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.fences = 1; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.sources = 2; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.targets = 2; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.bytes = 32; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp& op, DeviceOperand&) { op.plain = 0; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp&, DeviceOperand& at) { at.place = 1; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp&, DeviceOperand& at) { at.extra = 1; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp&, DeviceOperand& at) { at.peer = 1; }), 1u);
  EXPECT_EQ(turns_with([](DeviceOp&, DeviceOperand& at) { at.value += 1; }), 1u);
}

}  // namespace
}  // namespace tutti::cuda::test
