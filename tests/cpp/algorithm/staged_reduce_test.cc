// Reduce and all-reduce through staging areas among ranks that have a core each, as the ranks of this test need not:
// then many ranks share the adding of a reduce.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "algorithm/shm/shm_algorithms.h"
#include "channel/host_channels.h"

namespace tutti {
namespace {

constexpr float kUntouched = -7;
// Of a part of one line, of one chunk and more, and of more rounds than the staging area has places. The last is what
// three ranks and more divide.
constexpr std::size_t kCounts[] = {1, 37, 128, 129, 1000, 30'003};

const Algorithm& staged(Collective collective) {
  static const AlgorithmList all = staged_algorithms();
  return **std::find_if(all.begin(), all.end(), [&](const auto& a) { return a->collective() == collective; });
}

class StagedRank {
 public:
  explicit StagedRank(HostChannel& host) : host_(host), context_(call_) {
    context_.rank = host.index();
    context_.size = host.ranks();
    context_.host = &host;
  }

  // `root`: -1 for all. In place on who has the result, if so asked; what others have as an output stays as it was.
  void reduce(std::size_t count, int root, ReduceOp op, bool in_place) {
    const int rank = context_.rank, size = context_.size;
    std::vector<float> in(count), out(count, kUntouched);
    for (std::size_t i = 0; i < count; ++i) in[i] = value(rank, i);
    const bool takes = root < 0 || root == rank;
    Call call;
    call.collective = root < 0 ? Collective::kAllReduce : Collective::kReduce;
    call.dtype = DataType::kFloat32;
    call.op = op;
    call.root = root;
    call.count = count;
    call.input = Blocks::single(in.data(), count * sizeof(float));
    std::vector<float>& result = in_place && takes ? in : out;
    call.output = Blocks::single(result.data(), count * sizeof(float));
    run(call);
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < size; ++r) sum += value(r, i);
      const float expected = !takes ? kUntouched : op == ReduceOp::kAvg ? sum / static_cast<float>(size) : sum;
      ASSERT_EQ(takes ? result[i] : out[i], expected) << rank << " of " << size << ", root " << root << ", " << i;
      if (!in_place || !takes) {
        ASSERT_EQ(in[i], value(rank, i)) << "an input has changed";
      }
    }
  }

 private:
  static float value(int rank, std::size_t i) {
    return static_cast<float>((i * 3 + static_cast<std::size_t>(rank) * 5) % 17);
  }
  void run(const Call& call) {
    call_.deadline = Deadline::after(std::chrono::seconds(60));
    call_.record = CallRecord{};
    call_.record.sequence = ++sequence_;
    call_.record.hash = 1;
    ASSERT_TRUE(host_.begin_and_announce(call_.record, call_.deadline).ok());
    ASSERT_TRUE(host_.await_all(call_.deadline).ok());
    ASSERT_TRUE(staged(call.collective).run(call, context_).ok());
  }

  HostChannel& host_;
  CallState call_;
  CallContext context_;
  std::uint64_t sequence_ = 0;
};

class StagedReduceOf : public testing::TestWithParam<int> {};

TEST_P(StagedReduceOf, EveryRootHasTheSumAndNobodyElseIsTouched) {
  const int ranks = GetParam();
  const auto channels = test::make_host_channels(ranks);
  std::vector<std::thread> threads;
  for (const auto& channel : channels) {
    EXPECT_FALSE(channel->crowded());
    threads.emplace_back([&channel, ranks] {
      StagedRank rank(*channel);
      for (const std::size_t count : kCounts) {
        for (int root = -1; root < ranks; ++root) {
          rank.reduce(count, root, root % 2 == 0 ? ReduceOp::kAvg : ReduceOp::kSum, root % 3 == 0);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Ranks, StagedReduceOf, testing::Values(2, 3, 4, 6),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace tutti
