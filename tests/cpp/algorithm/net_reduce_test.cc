// Reductions over messages against the oracle: every algorithm, type, operation, size and placement.

#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "algorithm/net_oracle.h"
#include "algorithm/net_ranks.h"
#include "device/cpu/kernels.h"
#include "support/sanitized.h"

namespace tutti::test {
namespace {

constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kInt32, DataType::kUint8,
                               DataType::kComplex64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor,     ReduceOp::kBxor};
// The last one is sent in many pieces.
constexpr std::size_t kCounts[] = {0, 1, 5, 1000, kSanitized ? 20'011 : 100'003};

struct Case {
  DataType dtype;
  ReduceOp op;
  std::size_t count;
  bool in_place;
};

std::string name(const Algorithm& algorithm, const Case& c, int size) {
  return std::string(to_string(algorithm.collective())) + " " + std::string(algorithm.name()) + " " +
         std::string(to_string(c.dtype)) + " " + std::string(to_string(c.op)) + " " + std::to_string(c.count) +
         (c.in_place ? " in place" : "") + " ranks " + std::to_string(size);
}

// Every combination; of the operations on large messages only two, which take all the paths there are.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DataType dtype : kTypes) {
    // Threads do not differ by what is summed, but they do by how: bfloat16 travels wider than it is.
    if (kThreadSanitizer && dtype != DataType::kFloat32 && dtype != DataType::kBfloat16) continue;
    for (const ReduceOp op : kOps) {
      if (!cpu::supports(dtype, op)) continue;
      if (kThreadSanitizer && op != ReduceOp::kSum && op != ReduceOp::kAvg) continue;
      for (const std::size_t count : kCounts) {
        if (count > 1000 && op != ReduceOp::kSum && op != ReduceOp::kMax) continue;
        all.push_back({dtype, op, count, false});
        all.push_back({dtype, op, count, true});
      }
    }
  }
  return all;
}

class NetReduce : public ::testing::TestWithParam<int> {};

// Calls `check(rank, algorithm, case)` for everything that the algorithms of a collective do not refuse.
void sweep(int size, Collective collective, const std::function<void(NetRank&, const Algorithm&, const Case&)>& check) {
  const AlgorithmList algorithms = algorithms_of(collective);
  const std::vector<Case> all = cases();
  on_ranks(size, [&](NetRank& rank) {
    for (const auto& algorithm : algorithms) {
      for (const Case& c : all) {
        Call call;
        call.collective = collective;
        call.dtype = c.dtype;
        call.op = c.op;
        if (algorithm->refusal(shape_of(call, size, c.count * size_of(c.dtype))) != nullptr) continue;
        check(rank, *algorithm, c);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

Call reduction(Collective collective, const Case& c) {
  Call call;
  call.collective = collective;
  call.dtype = c.dtype;
  call.op = c.op;
  call.count = c.count;
  return call;
}

TEST_P(NetReduce, AllReduce) {
  const int size = GetParam();
  sweep(size, Collective::kAllReduce, [size](NetRank& rank, const Algorithm& algorithm, const Case& c) {
    Bytes input = input_of(c.dtype, c.op, rank.rank, 0, c.count);
    const Bytes before = input;
    Bytes output(input.size(), std::byte{0xee});
    Call call = reduction(Collective::kAllReduce, c);
    call.input = Blocks::single(input.data(), input.size());
    call.output = c.in_place ? call.input : Blocks::single(output.data(), output.size());
    ASSERT_TRUE(rank.run(algorithm, call).ok()) << name(algorithm, c, size);
    ASSERT_EQ(first_difference(call.output.data(0), c.dtype, c.op, size, 0, c.count), -1) << name(algorithm, c, size);
    if (!c.in_place) {
      ASSERT_EQ(input, before) << "input changed: " << name(algorithm, c, size);
    }
  });
}

TEST_P(NetReduce, Reduce) {
  const int size = GetParam();
  sweep(size, Collective::kReduce, [size](NetRank& rank, const Algorithm& algorithm, const Case& c) {
    const int root = static_cast<int>(c.count % static_cast<std::size_t>(size));
    Bytes input = input_of(c.dtype, c.op, rank.rank, 0, c.count);
    const Bytes before = input;
    Bytes output(input.size(), std::byte{0xee});
    Call call = reduction(Collective::kReduce, c);
    call.root = root;
    call.input = Blocks::single(input.data(), input.size());
    if (rank.rank == root) call.output = c.in_place ? call.input : Blocks::single(output.data(), output.size());
    ASSERT_TRUE(rank.run(algorithm, call).ok()) << name(algorithm, c, size);
    if (rank.rank == root) {
      ASSERT_EQ(first_difference(call.output.data(0), c.dtype, c.op, size, 0, c.count), -1) << name(algorithm, c, size);
    } else {
      ASSERT_EQ(input, before) << "input changed: " << name(algorithm, c, size);
    }
  });
}

TEST_P(NetReduce, ReduceScatter) {
  const int size = GetParam();
  sweep(size, Collective::kReduceScatter, [size](NetRank& rank, const Algorithm& algorithm, const Case& c) {
    const std::size_t count = std::min<std::size_t>(c.count, 30011);
    Bytes input;
    for (int b = 0; b < size; ++b) {
      const Bytes block = input_of(c.dtype, c.op, rank.rank, b, count);
      input.insert(input.end(), block.begin(), block.end());
    }
    const std::size_t bytes = count * size_of(c.dtype);
    Bytes output(bytes, std::byte{0xee});
    Call call = reduction(Collective::kReduceScatter, c);
    call.count = count;
    call.input = Blocks::single(input.data(), bytes);
    call.output = c.in_place ? Blocks::single(call.input.data(rank.rank), bytes) : Blocks::single(output.data(), bytes);
    ASSERT_TRUE(rank.run(algorithm, call).ok()) << name(algorithm, c, size);
    ASSERT_EQ(first_difference(call.output.data(0), c.dtype, c.op, size, rank.rank, count), -1)
        << name(algorithm, c, size);
  });
}

// Blocks of r * 700 + 3 elements, an empty one among them, as lists of pointers.
TEST_P(NetReduce, UnevenReduceScatter) {
  const int size = GetParam();
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
    for (const auto& algorithm : algorithms_of(Collective::kReduceScatter)) {
      const Case c{dtype, ReduceOp::kSum, 0, false};
      Call shape = reduction(Collective::kReduceScatter, c);
      if (algorithm->refusal(shape_of(shape, size, 0)) != nullptr) continue;
      on_ranks(size, [&](NetRank& rank) {
        const auto count_of = [](int r) { return r == 1 ? 0 : static_cast<std::size_t>(r) * 70000 + 3; };
        std::vector<Bytes> blocks;
        std::vector<void*> pointers;
        std::vector<std::size_t> sizes;
        for (int b = 0; b < size; ++b) {
          blocks.push_back(input_of(dtype, c.op, rank.rank, b, count_of(b)));
          pointers.push_back(blocks.back().data());
          sizes.push_back(blocks.back().size());
        }
        Bytes output(sizes[static_cast<std::size_t>(rank.rank)]);
        Call call = shape;
        call.uneven = true;
        call.count = count_of(rank.rank);
        call.input = Blocks::list(pointers.data(), sizes.data());
        call.output = Blocks::single(output.data(), output.size());
        ASSERT_TRUE(rank.run(*algorithm, call).ok());
        EXPECT_EQ(first_difference(output.data(), dtype, c.op, size, rank.rank, call.count), -1);
      });
    }
  }
}

// Sums that depend on their order: all ranks must agree to the bit, and twice the same call gives the same.
TEST_P(NetReduce, AllRanksGetTheSameBits) {
  const int size = GetParam();
  for (const DataType dtype : {DataType::kFloat32, DataType::kBfloat16}) {
    for (const auto& algorithm : algorithms_of(Collective::kAllReduce)) {
      for (const std::size_t count :
           {std::size_t{37}, std::size_t{4000}, std::size_t{kSanitized ? 300'001 : 3'000'001}}) {
        const Case c{dtype, ReduceOp::kSum, count, false};
        Call shape = reduction(Collective::kAllReduce, c);
        if (algorithm->refusal(shape_of(shape, size, count * size_of(dtype))) != nullptr) continue;
        std::vector<Bytes> first(static_cast<std::size_t>(size));
        std::vector<Bytes> second(static_cast<std::size_t>(size));
        on_ranks(size, [&](NetRank& rank) {
          const auto me = static_cast<std::size_t>(rank.rank);
          std::mt19937 random(static_cast<unsigned>(rank.rank) + 1);
          std::uniform_real_distribution<float> wide(-1.0F, 1.0F);
          Bytes input(count * size_of(dtype));
          const std::size_t fresh = std::min<std::size_t>(count, 5003);
          for (std::size_t i = 0; i < fresh; ++i) {
            encode(input, i, dtype, std::ldexp(wide(random), static_cast<int>(random() % 20)));
          }
          for (std::size_t i = fresh * size_of(dtype); i < input.size(); i += fresh * size_of(dtype)) {
            std::memcpy(input.data() + i, input.data(), std::min(fresh * size_of(dtype), input.size() - i));
          }
          for (auto* output : {&first[me], &second[me]}) {
            output->resize(input.size());
            Call call = shape;
            call.input = Blocks::single(input.data(), input.size());
            call.output = Blocks::single(output->data(), output->size());
            ASSERT_TRUE(rank.run(*algorithm, call).ok());
          }
        });
        for (const auto& output : first) EXPECT_EQ(output, first[0]) << name(*algorithm, c, size);
        EXPECT_EQ(first, second) << name(*algorithm, c, size);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NetReduce, ::testing::Values(1, 2, 3, 4, 7, 8),
                         [](const auto& p) { return "Ranks" + std::to_string(p.param); });

// 256 and seven times 1 in bfloat16: rounded at every step the sum stays 256, rounded once it is 264.
TEST(NetReduceNarrow, SumsAreRoundedOnce) {
  constexpr int kSize = 8;
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (const auto& algorithm : algorithms_of(collective)) {
      for (const std::size_t count : {std::size_t{64}, std::size_t{50000}}) {
        const Case c{DataType::kBfloat16, ReduceOp::kSum, count, false};
        Call shape = reduction(collective, c);
        shape.root = collective == Collective::kReduce ? 3 : -1;
        if (algorithm->refusal(shape_of(shape, kSize, count * 2)) != nullptr) continue;
        on_ranks(kSize, [&](NetRank& rank) {
          const std::size_t blocks = collective == Collective::kReduceScatter ? kSize : 1;
          Bytes input(count * 2 * blocks);
          for (std::size_t i = 0; i < count * blocks; ++i) encode(input, i, c.dtype, rank.rank == 0 ? 256.0 : 1.0);
          Bytes output(count * 2);
          Call call = shape;
          call.input = Blocks::single(input.data(), count * 2);
          call.output = Blocks::single(output.data(), output.size());
          ASSERT_TRUE(rank.run(*algorithm, call).ok());
          if (collective == Collective::kReduce && rank.rank != 3) return;
          for (std::size_t i = 0; i < count; ++i) {
            ASSERT_EQ(decode(output.data(), i, c.dtype), 264.0) << name(*algorithm, c, kSize) << " at " << i;
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace tutti::test
