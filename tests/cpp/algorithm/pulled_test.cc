// Reading the peers' tensors, among ranks of this process: right for every collective of the kind, whoever is the root,
// with blocks in one piece and in many.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "algorithm/shm/shm_algorithms.h"
#include "base/collective_traits.h"
#include "channel/host_channels.h"

namespace tutti {
namespace {

constexpr std::size_t kCount = 3000;  // of a block: more than the small staging area of these ranks has in a round
constexpr int kRanks = 4;

float value(int from, int to, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(from) * 31 + static_cast<std::size_t>(to) * 5) % 1021);
}

// A rank's blocks, one after another or each by itself.
class BlockMemory {
 public:
  BlockMemory(int blocks, bool pieces) : memory_(static_cast<std::size_t>(blocks) * (kCount + 5), -1) {
    for (int b = 0; b < blocks; ++b) {
      pointers_.push_back(memory_.data() + static_cast<std::size_t>(b) * (kCount + (pieces ? 5 : 0)));
    }
    blocks_ = pieces ? Blocks{nullptr, kBytes, pointers_.data(), nullptr} : Blocks::single(memory_.data(), kBytes);
  }
  BlockMemory(const BlockMemory&) = delete;
  float* operator[](int block) const { return static_cast<float*>(pointers_[static_cast<std::size_t>(block)]); }
  const Blocks& blocks() const { return blocks_; }

 private:
  static constexpr std::size_t kBytes = kCount * sizeof(float);
  std::vector<float> memory_;
  std::vector<void*> pointers_;
  Blocks blocks_;
};

void run(const Algorithm& algorithm, HostChannel& host, std::uint64_t sequence, const Call& call) {
  CallState state;
  CallContext context(state);
  context.rank = host.index();
  context.size = host.ranks();
  context.host = &host;
  state.deadline = Deadline::after(std::chrono::seconds(60));
  state.record.sequence = sequence;
  state.record.hash = 1;
  ASSERT_TRUE(host.begin_and_announce(state.record, state.deadline).ok());
  ASSERT_TRUE(host.await_all(state.deadline).ok());
  ASSERT_TRUE(host.reads_across()) << "ranks of one process";
  ASSERT_TRUE(algorithm.run(call, context).ok());
}

void make_calls(const Algorithm& algorithm, HostChannel& host, std::uint64_t& sequence) {
  const Collective collective = algorithm.collective();
  const CollectiveTraits& traits = traits_of(collective);
  const int me = host.index();
  for (int root = 0; root < (traits.has_root ? kRanks : 1); ++root) {
    for (const bool pieces : {false, true}) {
      BlockMemory in(traits.input_blocks ? kRanks : 1, pieces), out(traits.output_blocks ? kRanks : 1, pieces);
      for (int to = 0; to < (traits.input_blocks ? kRanks : 1); ++to) {
        for (std::size_t i = 0; i < kCount; ++i) in[to][i] = value(me, to, i);
      }
      const bool in_place = collective == Collective::kBroadcast;
      Call call;
      call.collective = collective;
      call.dtype = DataType::kFloat32;
      call.count = kCount;
      call.root = traits.has_root ? root : -1;
      call.input = in.blocks();
      call.output = in_place ? in.blocks() : out.blocks();
      run(algorithm, host, ++sequence, call);
      for (int from = 0; from < kRanks; ++from) {
        if (traits.has_root && from != root) continue;
        const float* const got = in_place ? in[0] : out[traits.output_blocks ? from : 0];
        for (std::size_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(got[i], value(from, traits.input_blocks ? me : 0, i)) << to_string(collective) << " of " << from;
        }
      }
    }
  }
}

TEST(Pulled, EveryRankReadsWhatItNeeds) {
  const auto channels = test::make_host_channels(kRanks);
  std::vector<std::thread> threads;
  for (const auto& channel : channels) {
    threads.emplace_back([&channel] {
      std::uint64_t sequence = 0;
      const AlgorithmList pulled = pulled_algorithms(), staged = staged_algorithms();
      for (int turn = 0; turn < 3; ++turn) {
        for (const auto& algorithm : pulled) {
          make_calls(*algorithm, *channel, sequence);
          // In turns with the pipelines, which go on from the same counters.
          const auto other = std::find_if(staged.begin(), staged.end(),
                                          [&](const auto& a) { return a->collective() == algorithm->collective(); });
          make_calls(**other, *channel, sequence);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti
