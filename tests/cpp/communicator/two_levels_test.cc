// The algorithms in two levels give what they should, the same on all ranks, whatever the ranks of the hosts.
#include "communicator/two_levels.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "algorithm/net_oracle.h"
#include "device/cpu/kernels.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

// Around the inline payload, the slot, a line for each of several carriers, and several chunks and laps.
const std::vector<std::size_t> kCounts = {0, 1, 31, 1000, 8192, 8193, 100'003};

struct Kind {
  DataType dtype;
  ReduceOp op;
};
constexpr Kind kKinds[] = {{DataType::kFloat32, ReduceOp::kSum},  {DataType::kFloat32, ReduceOp::kAvg},
                           {DataType::kBfloat16, ReduceOp::kSum}, {DataType::kBfloat16, ReduceOp::kAvg},
                           {DataType::kBfloat16, ReduceOp::kMax}, {DataType::kInt32, ReduceOp::kSum},
                           {DataType::kUint8, ReduceOp::kBxor},   {DataType::kComplex64, ReduceOp::kProduct}};

// (layout, forced algorithm)
using Param = std::tuple<const char*, const char*>;

class TwoLevels : public testing::TestWithParam<Param> {
 protected:
  static std::string layout() { return std::get<0>(GetParam()); }
  static World world() {
    const std::string algorithm = std::get<1>(GetParam());
    return world_of(layout(), algorithm.empty() ? "" : "all_reduce=" + algorithm);
  }
};

TEST_P(TwoLevels, AllReduceOfEveryKindIsRightAndTheSameOnAllRanks) {
  std::vector<std::vector<Bytes>> results(layout().size());
  const int roundings = std::get<1>(GetParam()) == std::string("carriers") ? 2 : 1;
  run_ranks(world(), [&](Communicator& c) {
    for (const Kind& kind : kKinds) {
      for (const std::size_t count : kCounts) {
        if (count > 10'000 && kind.dtype != DataType::kFloat32) continue;
        if (kThreadSanitizer && kind.op != ReduceOp::kSum) continue;  // threads do not differ by it
        for (const bool in_place : {false, true}) {
          Bytes x = input_of(kind.dtype, kind.op, c.rank(), 0, count);
          Bytes y(x.size());
          Call call;
          call.collective = Collective::kAllReduce;
          call.dtype = kind.dtype;
          call.op = kind.op;
          call.count = count;
          call.input = Blocks::single(x.data(), x.size());
          call.output = in_place ? call.input : Blocks::single(y.data(), y.size());
          c.run(call);
          Bytes& got = in_place ? x : y;
          ASSERT_EQ(first_difference(got.data(), kind.dtype, kind.op, c.size(), 0, count, roundings), -1)
              << to_string(kind.dtype) << " " << to_string(kind.op) << " count " << count << " rank " << c.rank();
          results[static_cast<std::size_t>(c.rank())].push_back(std::move(got));
        }
      }
    }
  });
  for (const auto& result : results) EXPECT_TRUE(result == results.front());
}

// Sums whose bits depend on the order: all ranks must have taken the same.
TEST_P(TwoLevels, InexactSumsHaveTheSameBitsOnAllRanks) {
  std::vector<std::vector<float>> results(layout().size());
  run_ranks(world(), [&](Communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    std::normal_distribution<float> normal;
    for (const std::size_t count : {7UL, 5000UL, 200'003UL}) {
      FloatCall sum(Collective::kAllReduce, count, 1);
      for (float& x : sum.in) x = normal(random);
      c.run(sum.call);
      auto& mine = results[static_cast<std::size_t>(c.rank())];
      mine.insert(mine.end(), sum.out.begin(), sum.out.end());
    }
  });
  for (const auto& result : results) EXPECT_TRUE(result == results.front());
}

TEST_P(TwoLevels, BroadcastFromEveryRootAndAllGather) {
  run_ranks(world(), [&](Communicator& c) {
    const auto value = [](int rank, std::size_t i) {
      return static_cast<float>(rank * 1000) + static_cast<float>(i % 999);
    };
    for (const std::size_t count : {0UL, 1UL, 31UL, 1023UL, 8192UL, 8193UL}) {
      for (int root = 0; root < c.size(); ++root) {
        FloatCall made(Collective::kBroadcast, count, 1, root);
        for (std::size_t i = 0; i < count; ++i) made.in[i] = value(c.rank(), i);
        c.run(made.call);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(made.in[i], value(root, i)) << count << " root " << root;
      }
      FloatCall made(Collective::kAllGather, count, c.size());
      for (std::size_t i = 0; i < count; ++i) made.in[i] = value(c.rank(), i);
      c.run(made.call);
      for (std::size_t i = 0; i < made.out.size(); ++i) {
        ASSERT_EQ(made.out[i], value(static_cast<int>(i / count), i % count)) << count << " element " << i;
      }
      c.run(FloatCall(Collective::kBarrier, 0, 1).call);
    }
    EXPECT_GT(calls_by(c, Collective::kBroadcast, "leaders"), 0U);
    EXPECT_GT(calls_by(c, Collective::kAllGather, "leaders"), 0U);
    EXPECT_EQ(calls_by(c, Collective::kBarrier, "leaders"), 6U);
  });
}

std::string param_name(const testing::TestParamInfo<Param>& info) {
  const std::string algorithm = std::get<1>(info.param);
  return std::string(std::get<0>(info.param)) + (algorithm.empty() ? "" : "_" + algorithm);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TwoLevels,
                         testing::Combine(testing::Values("aab", "aabb", "abab", "abbb", "aaabccc", "abacbcab"),
                                          testing::Values("", "carriers")),
                         param_name);

// What is taken without being asked for.
TEST(TwoLevelsChoice, FollowsSizeTypeAndHosts) {
  run_ranks(world_of("aabb"), [](Communicator& c) {
    for (const std::size_t count : {2UL, 8192UL, 8193UL}) {
      FloatCall sum(Collective::kAllReduce, count, 1);
      c.run(sum.call);
    }
    c.run(FloatCall(Collective::kBarrier, 0, 1).call);
    EXPECT_EQ(calls_by(c, Collective::kAllReduce, "leaders"), 2U);
    EXPECT_EQ(calls_by(c, Collective::kAllReduce, "carriers"), 1U);
    EXPECT_EQ(calls_by(c, Collective::kBarrier, "leaders"), 1U);
    FloatCall narrow(Collective::kAllReduce, 8193, 1);
    narrow.call.dtype = DataType::kFloat8E5M2;
    narrow.call.count *= sizeof(float);
    const std::string text = c.explain(narrow.call);
    EXPECT_NE(text.find("carriers: not here: partial sums of a narrow type"), std::string::npos) << text;
  });
  run_ranks(world_of("abc"), [](Communicator& c) {
    const std::string text = c.explain(FloatCall(Collective::kAllReduce, 2, 1).call);
    EXPECT_NE(text.find("leaders: not here: needs a host with several ranks"), std::string::npos) << text;
  });
}

// bf16 travels as bf16: rounded on the host and among the hosts. What has less range than fp32 is brought together and
// rounded once: 40000 twice is too much for fp16, 40000 twice and -40000 twice are nothing.
TEST(TwoLevelsNarrow, LargeCallsGoByCarriersWhereNothingOverflows) {
  run_ranks(world_of("aabb"), [](Communicator& c) {
    constexpr std::size_t kCount = 100'003;
    std::vector<std::uint16_t> values(kCount);
    Call call;
    call.collective = Collective::kAllReduce;
    call.count = kCount;
    call.input = call.output = Blocks::single(values.data(), kCount * 2);
    const auto expect = [&](ReduceOp op, std::uint16_t given, std::uint16_t expected) {
      std::ranges::fill(values, given);
      call.op = op;
      c.run(call);
      for (const std::uint16_t value : values) ASSERT_EQ(value, expected);
    };
    call.dtype = DataType::kBfloat16;
    expect(ReduceOp::kSum, 0x3f80, 0x4080);                          // 1, 4
    expect(ReduceOp::kAvg, 0x3f80, 0x3f80);                          // 1
    expect(ReduceOp::kSum, c.rank() < 2 ? 0x7e80 : 0xfe80, 0x0000);  // 8.5e37
    EXPECT_EQ(calls_by(c, Collective::kAllReduce, "carriers"), 3U);
    call.dtype = DataType::kFloat16;
    expect(ReduceOp::kSum, c.rank() < 2 ? 0x78e2 : 0xf8e2, 0x0000);  // 40000
    expect(ReduceOp::kAvg, 0x0001, 0x0001);                          // the least there is
    EXPECT_EQ(calls_by(c, Collective::kAllReduce, "carriers"), 3U);
  });
}

// Calls of all kinds back to back, in an order that the seed gives: nothing of one reaches another.
TEST(TwoLevelsSequence, DifferentCallsDoNotMix) {
  for (const char* layout : {"aabb", "abab", "aabcb"}) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(std::string(layout) + " seed " + std::to_string(seed));
    run_ranks(world_of(layout), [seed](Communicator& c) {
      std::mt19937 random(seed);  // the same on all ranks
      const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random()) % n; };
      const int n = c.size();
      for (int k = 0; k < 80; ++k) {
        constexpr Collective kCollectives[] = {
            Collective::kAllReduce, Collective::kAllReduce, Collective::kAllReduce, Collective::kReduceScatter,
            Collective::kBroadcast, Collective::kAllGather, Collective::kBarrier,   Collective::kGather};
        const Collective collective = kCollectives[pick(std::size(kCollectives))];
        const std::size_t count = std::vector<std::size_t>{1, 25, 100, 3000, 9000, 60'000}[pick(6)];
        const int root = static_cast<int>(pick(static_cast<std::size_t>(n)));
        const bool rooted = collective == Collective::kBroadcast || collective == Collective::kGather;
        FloatCall made(collective, collective == Collective::kBarrier ? 0 : count, n, rooted ? root : -1);
        const auto value = [&](int rank, std::size_t i) {
          return static_cast<float>((i * 3 + static_cast<std::size_t>(rank + k) * 5) % 17);
        };
        for (std::size_t i = 0; i < made.in.size(); ++i) made.in[i] = value(c.rank(), i);
        c.run(made.call);
        const auto sum = [&](std::size_t i) {
          float s = 0;
          for (int r = 0; r < n; ++r) s += value(r, i);
          return s;
        };
        const std::string what = std::string(to_string(collective)) + " #" + std::to_string(k);
        const std::size_t mine = static_cast<std::size_t>(c.rank()) * count;
        for (std::size_t i = 0; i < made.out.size(); ++i) {
          const int block = static_cast<int>(i / count);
          float want = -1;
          if (collective == Collective::kAllReduce && block == 0) want = sum(i);
          if (collective == Collective::kReduceScatter && block == 0) want = sum(mine + i);
          if (collective == Collective::kAllGather) want = value(block, i % count);
          if (collective == Collective::kGather && c.rank() == root) want = value(block, i % count);
          if (collective != Collective::kBroadcast) {
            ASSERT_EQ(made.out[i], want) << what << " element " << i;
          } else if (block == 0) {
            ASSERT_EQ(made.in[i], value(root, i)) << what;
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test
