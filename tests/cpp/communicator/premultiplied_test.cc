// PREMUL_SUM, whose input is multiplied in memory that the library takes for it: blocks of any sizes, and no memory.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "communicator/refused_memory.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

// Block `to` of rank `from`: never the same number of elements twice, and one block without any.
std::size_t count_of(int to, std::size_t unit) { return unit * static_cast<std::size_t>(to); }
float value(int from, int to, std::size_t i) { return static_cast<float>(static_cast<int>(i % 11) + from * 3 + to); }

void reduce_scatter_uneven(Communicator& c, std::size_t unit) {
  std::vector<std::vector<float>> blocks;
  std::vector<void*> pointers;
  std::vector<std::size_t> bytes;
  for (int to = 0; to < c.size(); ++to) {
    blocks.emplace_back();
    for (std::size_t i = 0; i < count_of(to, unit); ++i) blocks.back().push_back(value(c.rank(), to, i));
    bytes.push_back(blocks.back().size() * sizeof(float));
  }
  for (auto& block : blocks) pointers.push_back(block.data());
  const std::vector<std::vector<float>> before = blocks;
  std::vector<float> got(count_of(c.rank(), unit), -1);
  Call call;
  call.collective = Collective::kReduceScatter;
  call.dtype = DataType::kFloat32;
  call.op = ReduceOp::kPremulSum;
  call.factor = 2.0 + c.rank();
  call.uneven = true;
  call.count = got.size();
  call.input = Blocks::list(pointers.data(), bytes.data());
  call.output = Blocks::single(got.data(), got.size() * sizeof(float));
  c.run(call);
  for (std::size_t i = 0; i < got.size(); ++i) {
    float want = 0;
    for (int from = 0; from < c.size(); ++from) want += (2.0F + static_cast<float>(from)) * value(from, c.rank(), i);
    ASSERT_EQ(got[i], want) << "element " << i << " unit " << unit << " rank " << c.rank();
  }
  EXPECT_EQ(blocks, before) << "the input was written";
}

// Of float32, in place, times two.
Call all_reduce_of(std::vector<float>& x) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.op = ReduceOp::kPremulSum;
  call.factor = 2;
  call.count = x.size();
  call.input = call.output = Blocks::single(x.data(), x.size() * sizeof(float));
  return call;
}

TEST(Premultiplied, BlocksOfAReduceScatterMayHaveAnySizes) {
  for (const int hosts : {1, 3}) {
    World world;
    world.size = 3;
    if (hosts > 1) world.host_of = [](int r) { return "host" + std::to_string(r); };
    run_ranks(world, [](Communicator& c) {
      for (const std::size_t unit : {1UL, 100UL, 70'001UL}) reduce_scatter_uneven(c, unit);
    });
  }
}

class PremultipliedInWant : public RefusedMemory<> {};

TEST_F(PremultipliedInWant, ARankWithoutMemoryIsRefusedAndAllGoOn) {
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& c) {
    constexpr std::size_t kCount = 1 << 20;
    std::vector<float> x(kCount, static_cast<float>(c.rank()));
    const Call call = all_reduce_of(x);
    if (c.rank() == 1) {
      count_me();
      const Error error = error_of([&] {
        const Refusal refusal(Of::kThisThread, Which::kOne, 1);  // the first that the call takes
        c.run(call);
      });
      EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
      EXPECT_NE(std::string(error.what()).find("no memory for the 4194368 bytes"), std::string::npos) << error.what();
      EXPECT_EQ(c.sequence(), 0U);
    }
    c.run(call);
    EXPECT_EQ(x, std::vector<float>(kCount, 6));
    reduce_scatter_uneven(c, 10);
  });
}

TEST_F(PremultipliedInWant, AQueuedCallThatFindsNoMemoryIsRefusedAndAllGoOn) {
  World world;
  world.size = 3;
  run_ranks(world, [](Communicator& c) {
    constexpr std::size_t kCount = 1 << 20;
    std::vector<float> first(kCount, static_cast<float>(c.rank())), second(kCount, 100);
    std::vector<float> small(kCount / 2, 1);
    const WorkPtr before = c.submit(all_reduce_of(small));
    if (c.rank() == 1) {
      count_me();
      const Error error = error_of([&] {
        const Refusal refusal(Of::kThisThread, Which::kOne, 1);
        c.submit(all_reduce_of(first));
      });
      EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
      EXPECT_NE(std::string(error.what()).find("Nothing has been sent"), std::string::npos) << error.what();
    }
    const std::array<WorkPtr, 2> works{c.submit(all_reduce_of(first)), c.submit(all_reduce_of(second))};
    before->wait();
    for (const WorkPtr& work : works) work->wait();
    EXPECT_EQ(small, std::vector<float>(kCount / 2, 6));
    EXPECT_EQ(first, std::vector<float>(kCount, 6));
    EXPECT_EQ(second, std::vector<float>(kCount, 600));
  });
}

}  // namespace
}  // namespace tutti::test
