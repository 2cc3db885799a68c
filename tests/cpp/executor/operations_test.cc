// Every operation alone, on integers, against what PLANS and the table of operations say of it.
#include "plan/operations.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>

#include "executor/cpu/local_world.h"
#include "executor/executor_plans.h"

namespace tutti::executor {
namespace {

using namespace tutti::plan;  // NOLINT: the builder's names are most of this file

constexpr std::int32_t kRanks = 3;
constexpr ChannelKind kMemory = ChannelKind::kMemory;
constexpr ChannelKind kPort = ChannelKind::kPort;
constexpr std::int32_t kUntouched = -77;

using Block = PlanBuilder::Block;

// Element i of chunk `chunk` of a rank's input.
std::int32_t given(std::int32_t rank, std::int32_t chunk, std::int64_t i) {
  return static_cast<std::int32_t>(rank * 100'000 + chunk * 10'000 + i);
}

// One program on every rank: 2 chunks of input, 4 of output, 8 of scratch. Between two meetings of all ranks, so that
// the operation under test is all there is to see.
class OneOperation {
 public:
  explicit OneOperation(bool packets = false) : builder(PlanCollective::kTest, kRanks, 2, 4, 8) {
    builder.plan.double_scratch = packets;
  }

  PlanBuilder builder;
  std::set<OpKind> used;

  void each_rank(const std::function<void(const Block&, std::int32_t rank, std::int32_t next)>& body) {
    for (std::int32_t r = 0; r < kRanks; ++r) {
      const Block block = builder.at(r);
      meet_all(block, r, kRanks, 0);
      body(block, r, (r + 1) % kRanks);
      block.nop();
      meet_all(block, r, kRanks, 0);
    }
  }

  // expected(rank, chunk, i); chunks of `count` elements.
  using Expected = std::function<std::int32_t(std::int32_t, std::int32_t, std::int64_t)>;
  void expect(const Expected& expected) {
    for (const std::int64_t count : {4, 1, 3, 260, 1000}) {
      for (const std::uint64_t seed : {0, 1, 2, 3}) expect(expected, count, seed);
    }
  }

 private:
  void expect(const Expected& expected, std::int64_t count, std::uint64_t seed) {
    SCOPED_TRACE("chunks of " + std::to_string(count) + " elements, seed " + std::to_string(seed));
    // Chunks are whole multiples of 16 bytes but for the last: of two, the second is the odd one.
    const std::int64_t whole = (count * 4 + 15) / 16 * 4;
    const std::int64_t input = whole + count;
    const std::int64_t output = 3 * whole + count;
    std::vector<std::vector<std::int32_t>> inputs(kRanks), outputs(kRanks);
    LocalMessage message;
    message.dtype = DataType::kInt32;
    message.input_block_bytes = input * 4;
    message.output_block_bytes = output * 4;
    LocalWorld world(std::make_shared<const Plan>(builder.plan), input * 4, output * 4);
    for (std::int32_t r = 0; r < kRanks; ++r) {
      for (std::int64_t i = 0; i < input; ++i) inputs[r].push_back(given(r, i < whole ? 0 : 1, i % whole));
      outputs[r].assign(static_cast<std::size_t>(output + 4), kUntouched);
      message.inputs.push_back(reinterpret_cast<std::byte*>(inputs[r].data()));
      message.outputs.push_back(reinterpret_cast<std::byte*>(outputs[r].data()));
    }
    LocalOptions options;
    options.invocations = 3;
    if (seed != 0) options.seed = seed;
    const LocalResult result = world.run(message, options);
    ASSERT_TRUE(result.outcome.ok()) << result.waiting;
    for (std::int32_t r = 0; r < kRanks; ++r) {
      for (std::int64_t i = 0; i < output + 4; ++i) {
        // The input's second chunk is the short one: what comes of the rest of a chunk is not its plan's business.
        const auto chunk = static_cast<std::int32_t>(i / whole);
        if (i < output && chunk % 2 == 1 && i % whole >= count) continue;
        ASSERT_EQ(outputs[r][static_cast<std::size_t>(i)], i < output ? expected(r, chunk, i % whole) : kUntouched)
            << "rank " << r << ", element " << i;
      }
    }
  }
};

// Both chunks of the output's first half, nothing in the second.
OneOperation::Expected first_half(const std::function<std::int32_t(std::int32_t, std::int32_t, std::int64_t)>& of) {
  return [of](std::int32_t rank, std::int32_t chunk, std::int64_t i) {
    return chunk < 2 ? of(rank, chunk, i) : kUntouched;
  };
}

TEST(Operations, Copy) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t, std::int32_t) { b.copy(local(kI, 0, 2), local(kO, 0, 2)); });
  test.expect(first_half([](auto r, auto c, auto i) { return given(r, c, i); }));
}

TEST(Operations, PutAndGet) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.put(next, local(kI, 0, 2), kO, 0);
    b.move_memory(OpKind::kGet, {b.remote(kMemory, next, kI, 0, 2)}, {local(kO, 2, 2)});
  });
  test.expect([](auto r, auto c, auto i) {
    return c < 2 ? given((r + kRanks - 1) % kRanks, c, i) : given((r + 1) % kRanks, c - 2, i);
  });
}

TEST(Operations, SeveralPairsInOnePut) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t r, std::int32_t next) {
    const std::int32_t other = (r + 2) % kRanks;
    b.move_memory(OpKind::kPut, {local(kI, 0, 2), local(kI, 0, 2)},
                  {b.remote(kMemory, next, kO, 0, 2), b.remote(kMemory, other, kO, 2, 2)});
  });
  test.expect(
      [](auto r, auto c, auto i) { return c < 2 ? given((r + 2) % kRanks, c, i) : given((r + 1) % kRanks, c - 2, i); });
}

TEST(Operations, ReduceInPlace) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t, std::int32_t) {
    b.copy(local(kI, 0, 2), local(kO, 0, 2)).nop();
    b.move(OpKind::kReduce, {local(kI, 0, 2), local(kO, 0, 2)}, {local(kO, 0, 2)});
  });
  test.expect(first_half([](auto r, auto c, auto i) { return 2 * given(r, c, i); }));
}

TEST(Operations, ReduceSend) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.move_memory(OpKind::kReduceSend, {local(kI, 0, 2), local(kI, 0, 2)},
                  {local(kO, 0, 2), b.remote(kMemory, next, kO, 2, 2)});
  });
  test.expect(
      [](auto r, auto c, auto i) { return c < 2 ? 2 * given(r, c, i) : 2 * given((r + 2) % kRanks, c - 2, i); });
}

TEST(Operations, ReadReduceAndReadReduceSend) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    const Operand theirs = b.remote(kMemory, next, kI, 0, 2);
    b.move_memory(OpKind::kReadReduce, {local(kI, 0, 2), theirs}, {local(kS, 0, 2)}).nop();
    b.move_memory(OpKind::kReadReduceSend, {local(kS, 0, 2), theirs},
                  {local(kO, 0, 2), b.remote(kMemory, next, kO, 2, 2)});
  });
  const auto value = [](std::int32_t r, std::int32_t c, std::int64_t i) {
    return given(r, c, i) + 2 * given((r + 1) % kRanks, c, i);
  };
  test.expect([value](auto r, auto c, auto i) { return c < 2 ? value(r, c, i) : value((r + 2) % kRanks, c - 2, i); });
}

TEST(Operations, CopyPacketsAndUnpack) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t) {
    b.move(OpKind::kCopyPackets, {local(kI, 0, 2)}, {local(kS, 0, 2)});
    b.move(OpKind::kUnpackPackets, {local(kS, 0, 2)}, {local(kO, 0, 2)});
  });
  test.expect(first_half([](auto r, auto c, auto i) { return given(r, c, i); }));
}

TEST(Operations, PutPacketsAndReadPutPackets) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.move_memory(OpKind::kPutPackets, {local(kI, 0, 2)}, {b.remote(kMemory, next, kS, 0, 2)});
    b.move_memory(OpKind::kReadPutPackets, {local(kS, 0, 2)}, {b.remote(kMemory, next, kS, 2, 2)});
    b.move(OpKind::kUnpackPackets, {local(kS, 2, 2)}, {local(kO, 0, 2)});
  });
  test.expect(first_half([](auto r, auto c, auto i) { return given((r + 1) % kRanks, c, i); }));
}

// The one below is through ports: whoever forwards packets waits for them, whoever copies its own need not.
TEST(Operations, PacketsThroughPorts) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.move(OpKind::kCopyPackets, {local(kI, 0, 2)}, {local(kS, 0, 2)});
    for (const auto& [kind, from, to] :
         {std::tuple{OpKind::kPutPackets, 0, 2}, std::tuple{OpKind::kReadPutPackets, 2, 4}}) {
      Operation op;
      op.kind = kind;
      op.channel = kPort;
      op.channel_ids = {b.channel(kPort, next)};
      op.sources = {local(kS, from, 2)};
      op.destinations = {b.remote(kPort, next, kS, to, 2)};
      b.add(op);
    }
    b.move(OpKind::kUnpackPackets, {local(kS, 4, 2)}, {local(kO, 0, 2)});
  });
  test.expect(first_half([](auto r, auto c, auto i) { return given((r + 1) % kRanks, c, i); }));
}

// The plain operand comes first in the list and last in the sum; integers do not tell, so differences in the packets'
// places do: each has another factor of the rank.
TEST(Operations, ReducePackets) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.move_memory(OpKind::kPutPackets, {local(kI, 0, 2)}, {b.remote(kMemory, next, kS, 0, 2)});
    b.move_memory(OpKind::kPutPackets, {local(kI, 0, 2)}, {b.remote(kMemory, (next + 1) % kRanks, kS, 2, 2)});
    b.move(OpKind::kReducePackets, {local(kI, 0, 2), local(kS, 0, 2), local(kS, 2, 2)}, {local(kO, 0, 2)});
  });
  test.expect(first_half([](auto, auto c, auto i) { return given(0, c, i) + given(1, c, i) + given(2, c, i); }));
}

TEST(Operations, ReduceSendPackets) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.move(OpKind::kCopyPackets, {local(kI, 0, 2)}, {local(kS, 0, 2)});
    b.move_memory(OpKind::kReduceSendPackets, {local(kI, 0, 2), local(kS, 0, 2)},
                  {local(kO, 0, 2), b.remote(kMemory, next, kS, 2, 2)});
    b.move(OpKind::kUnpackPackets, {local(kS, 2, 2)}, {local(kO, 2, 2)});
  });
  test.expect(
      [](auto r, auto c, auto i) { return c < 2 ? 2 * given(r, c, i) : 2 * given((r + 2) % kRanks, c - 2, i); });
}

TEST(Operations, ReduceCopyPackets) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t) {
    b.move(OpKind::kCopyPackets, {local(kI, 0, 2)}, {local(kS, 0, 2)});
    b.move(OpKind::kReduceCopyPackets, {local(kI, 0, 2), local(kS, 0, 2)}, {local(kO, 0, 2), local(kS, 2, 2)});
    b.move(OpKind::kUnpackPackets, {local(kS, 2, 2)}, {local(kO, 2, 2)});
  });
  test.expect([](auto r, auto c, auto i) { return 2 * given(r, c % 2, i); });
}

TEST(Operations, ReduceCopySendPackets) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t, std::int32_t next) {
    b.move(OpKind::kCopyPackets, {local(kI, 0, 2)}, {local(kS, 0, 2)});
    b.move_memory(OpKind::kReduceCopySendPackets, {local(kI, 0, 2), local(kS, 0, 2)},
                  {local(kO, 0, 2), local(kS, 2, 2), b.remote(kMemory, next, kS, 4, 2)});
    b.move(OpKind::kReducePackets, {local(kO, 0, 2), local(kS, 2, 2), local(kS, 4, 2)}, {local(kO, 2, 2)});
  });
  test.expect([](auto r, auto c, auto i) {
    return c < 2 ? 2 * given(r, c, i) : 4 * given(r, c - 2, i) + 2 * given((r + 2) % kRanks, c - 2, i);
  });
}

TEST(Operations, GroupLoadReduceAndStores) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t r, std::int32_t) {
    b.add(through_switch(OpKind::kGroupLoadReduce, {b.group(kI, 0, 2)}, {local(kS, 0, 2)}));
    b.nop();
    // One rank stores to all; every member has the channel.
    const Operand first = b.group(kO, 0, 2);
    const Operand second = b.group(kO, 2, 2);
    if (r == 0) b.add(through_switch(OpKind::kGroupStore, {local(kS, 0, 2)}, {first}));
    if (r == 1) b.add(through_switch(OpKind::kGroupLoadReduceStore, {b.group(kI, 0, 2)}, {second}));
  });
  test.expect([](auto, auto c, auto i) { return given(0, c % 2, i) + given(1, c % 2, i) + given(2, c % 2, i); });
}

TEST(Operations, GroupStorePackets) {
  OneOperation test(true);
  test.each_rank([](const Block& b, std::int32_t r, std::int32_t) {
    if (r == 1) {
      b.move(OpKind::kCopyPackets, {local(kI, 0, 2)}, {local(kS, 0, 2)});
      b.add(through_switch(OpKind::kGroupStorePackets, {local(kS, 0, 2)}, {b.group(kS, 2, 2)}));
    } else {
      b.group(kS, 2, 2);  // every member has the channel
    }
    b.move(OpKind::kUnpackPackets, {local(kS, 2, 2)}, {local(kO, 0, 2)});
  });
  test.expect(first_half([](auto, auto c, auto i) { return given(1, c, i); }));
}

TEST(Operations, PutWithSignalAndFlush) {
  for (const OpKind kind : {OpKind::kPutWithSignal, OpKind::kPutWithSignalAndFlush}) {
    OneOperation test;
    test.each_rank([kind](const Block& b, std::int32_t r, std::int32_t next) {
      const std::int32_t before = (r + kRanks - 1) % kRanks;
      b.put_port(kind, next, local(kI, 0, 2), kO, 0).port_wait(before);
      // The signal says that the data are here.
      b.nop().copy(local(kO, 0, 2), local(kO, 2, 2)).flush(next);
    });
    test.expect([](auto r, auto c, auto i) { return given((r + 2) % kRanks, c % 2, i); });
  }
}

// A put through a port is carried out later: until the flush its source must stay as it was. An agent that read it at
// once would hide a missing flush, one that reads it after the flush would break this plan.
TEST(Operations, FlushFreesTheSource) {
  OneOperation test;
  test.each_rank([](const Block& b, std::int32_t r, std::int32_t next) {
    const std::int32_t before = (r + kRanks - 1) % kRanks;
    b.copy(local(kI, 0, 2), local(kS, 0, 2)).put_port(OpKind::kPut, next, local(kS, 0, 2), kO, 0);
    b.port_signal(next).flush(next).nop();
    b.move(OpKind::kReduce, {local(kS, 0, 2), local(kS, 0, 2)}, {local(kS, 0, 2)}).nop();
    b.port_wait(before).copy(local(kS, 0, 2), local(kO, 2, 2));
  });
  test.expect([](auto r, auto c, auto i) { return c < 2 ? given((r + 2) % kRanks, c, i) : 2 * given(r, c - 2, i); });
}

TEST(Operations, SemaphoreWithCredit) {
  OneOperation test;
  for (Rank& rank : test.builder.plan.ranks) rank.semaphores = {1, 0};
  test.each_rank([&test](const Block& b, std::int32_t r, std::int32_t) {
    const Block other = test.builder.at(r, 1);
    // Credit of one: the first acquire passes at once, the second follows the other block's copy.
    b.acquire(0).release(1).acquire(0).nop().copy(local(kS, 0, 2), local(kO, 0, 2)).nop().release(1);
    other.acquire(1).nop().copy(local(kI, 0, 2), local(kS, 0, 2)).nop().release(0).acquire(1);
    other.copy(local(kI, 0, 2), local(kO, 2, 2)).release(0);
    b.acquire(0);
    other.release(0);
  });
  test.expect([](auto r, auto c, auto i) { return given(r, c % 2, i); });
}

// What a stuck plan says of itself.
Plan stuck_plan() {
  PlanBuilder builder(PlanCollective::kTest, 2, 1, 1, 0);
  builder.at(0, 0).copy(local(kI, 0), local(kO, 0)).signal(1).wait(1);
  builder.at(0, 1).nop();
  builder.at(1, 0).wait(0);
  builder.at(1, 0).channel(kMemory, 0);
  builder.plan.ranks[0].blocks[0].operations.back().origin = "mine.py:12";
  return builder.plan;
}

class Stuck : public testing::TestWithParam<bool> {};

TEST_P(Stuck, NamesWhoWaitsWhere) {
  LocalWorld world(std::make_shared<const Plan>(stuck_plan()), 4, 4);
  std::int32_t data[4] = {1, 2, 3, 4};
  LocalMessage message;
  for (int r = 0; r < 2; ++r) {
    message.inputs.push_back(reinterpret_cast<std::byte*>(&data[r]));
    message.outputs.push_back(reinterpret_cast<std::byte*>(&data[2 + r]));
  }
  message.input_block_bytes = message.output_block_bytes = 4;
  LocalOptions options;
  options.thread_per_rank = GetParam();
  options.timeout = std::chrono::milliseconds(300);
  const LocalResult result = world.run(message, options);
  EXPECT_EQ(result.outcome.status, Status::kTimeout);
  EXPECT_EQ(result.waiting, "rank 0 waits in thread block 0, operation 2 (wait) at mine.py:12 for a signal of rank 1");
}

INSTANTIATE_TEST_SUITE_P(Threads, Stuck, testing::Bool());

TEST(Packets, TheLastIsPaddedAndNoMoreIsTouched) {
  std::vector<PacketWord> words(8);
  std::byte data[16];
  for (int bytes = 0; bytes <= 16; ++bytes) {
    for (PacketWord& word : words) word.store(0, std::memory_order_relaxed);  // relaxed: one thread
    for (int i = 0; i < 16; ++i) data[i] = static_cast<std::byte>(i + 1);
    write_packets(words.data(), data, bytes, 9);
    EXPECT_EQ(words[packets_of(bytes)].load(std::memory_order_relaxed), 0U) << bytes;
    if (bytes % 4 != 0) {
      const std::uint64_t last = words[packets_of(bytes) - 1].load(std::memory_order_relaxed);
      EXPECT_EQ((last & 0xffffffff) >> (8 * (bytes % 4)), 0U) << bytes;
    }
    std::byte back[17];
    std::memset(back, 0x7f, sizeof back);
    EXPECT_EQ(count_packets(words.data(), bytes, 9), bytes);
    EXPECT_EQ(read_packets(back, words.data(), bytes, 9), bytes);
    EXPECT_EQ(std::memcmp(back, data, static_cast<std::size_t>(bytes)), 0);
    EXPECT_EQ(back[bytes], std::byte{0x7f});
    EXPECT_EQ(read_packets(back, words.data(), bytes, 8), 0);
  }
}

}  // namespace
}  // namespace tutti::executor
