// What `tutti tune` checks results by: it must see every wrong element.
#include "tools/sample_call.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "device/cpu/kernels.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Ranks = std::vector<std::unique_ptr<SampleCall>>;

Ranks filled(const SampleShape& shape) {
  Ranks ranks;
  for (int r = 0; r < shape.ranks; ++r) {
    ranks.push_back(std::make_unique<SampleCall>(shape));
    ranks.back()->fill(r);
  }
  return ranks;
}

// All ranks' inputs added, as a collective would.
std::vector<std::byte> sum_of(const Ranks& ranks, DataType dtype) {
  const Call& call = ranks[0]->call();
  std::vector<std::byte> sum(call.input.bytes);
  std::vector<const void*> sources;
  for (const auto& rank : ranks) sources.push_back(rank->call().input.data(0));
  void* target = sum.data();
  cpu::reduce(&target, 1, sources.data(), static_cast<int>(sources.size()), call.count, dtype, ReduceOp::kSum, 1);
  return sum;
}

class OfType : public testing::TestWithParam<DataType> {};

TEST_P(OfType, TheSumIsRightAndNothingElse) {
  SampleShape shape;
  shape.bytes = 40'000;
  shape.ranks = 3;
  shape.dtype = GetParam();
  Ranks ranks = filled(shape);
  EXPECT_FALSE(ranks[1]->right(1)) << "its own input is no result";
  const std::vector<std::byte> sum = sum_of(ranks, shape.dtype);
  std::byte* output = ranks[1]->call().output.data(0);
  std::memcpy(output, sum.data(), sum.size());
  EXPECT_TRUE(ranks[1]->right(1));
  for (const std::size_t at : {std::size_t{0}, std::size_t{20'001}, sum.size() - 1}) {
    output[at] ^= std::byte{1};
    EXPECT_FALSE(ranks[1]->right(1)) << at;
    output[at] ^= std::byte{1};
  }
  std::memcpy(output, sum.data() + 16'384, 8192);  // a chunk in the place of another
  EXPECT_FALSE(ranks[1]->right(1));
  ranks[1]->clear();
  EXPECT_FALSE(ranks[1]->right(1));
}

INSTANTIATE_TEST_SUITE_P(Types, OfType,
                         testing::Values(DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16,
                                         DataType::kFloat16, DataType::kInt32, DataType::kInt64),
                         [](const auto& test) { return std::string(to_string(test.param)); });

TEST(SampleCall, BlocksOfOtherRanksAreToldApart) {
  SampleShape shape;
  shape.collective = Collective::kAllGather;
  shape.bytes = 4096;
  shape.ranks = 4;
  Ranks ranks = filled(shape);
  const Blocks& output = ranks[2]->call().output;
  for (int r = 0; r < 4; ++r)
    std::memcpy(output.data(r), ranks[static_cast<std::size_t>(r)]->call().input.data(0), 4096);
  EXPECT_TRUE(ranks[2]->right(2));
  std::memcpy(output.data(1), output.data(3), 4096);
  EXPECT_FALSE(ranks[2]->right(2));
}

TEST(SampleCall, OnlyTheRootOfAGatherHasAResult) {
  SampleShape shape;
  shape.collective = Collective::kGather;
  shape.bytes = 64;
  Ranks ranks = filled(shape);
  EXPECT_FALSE(ranks[0]->right(0));
  EXPECT_TRUE(ranks[1]->right(1));
}

TEST(SampleCall, OtherTypesAreRefused) {
  SampleShape shape;
  shape.bytes = 64;
  shape.dtype = DataType::kComplex64;
  SampleCall sample(shape);
  EXPECT_THROW(sample.fill(0), Error);
}

}  // namespace
}  // namespace tutti
