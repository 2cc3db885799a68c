// Reading the peers' tensors, among ranks of this process: right for every collective of the kind, whoever is the root,
// with blocks in one piece and in many.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "algorithm/shm/shm_algorithms.h"
#include "base/collective_traits.h"
#include "base/cross_memory.h"
#include "channel/host_channels.h"
#include "communicator/thread_ranks.h"

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

bool may_read() {
  const std::uint64_t word = 1;
  std::uint64_t read = 0;
  return may_read_cross_memory() &&
         read_cross_memory(::getpid(), &read, reinterpret_cast<std::uintptr_t>(&word), sizeof word) == 0;
}

// A rank gives a call up while another still reads its tensor, and what that reads then is nobody's.
TEST(Pulled, WhoHasGivenUpMayUnmapItsTensor) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  void* const from = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(from, MAP_FAILED);
  std::memset(from, 1, kBytes);
  std::vector<std::byte> to(kBytes);
  std::atomic<Communicator*> root{nullptr};
  std::atomic<bool> over{false};
  const auto has_begun = [&] {  // by the kernel, for a rank may be writing there
    std::byte first{};
    return read_cross_memory(::getpid(), &first, reinterpret_cast<std::uintptr_t>(to.data()), 1) != 0 ||
           first == std::byte{1};
  };
  std::thread aborts([&] {
    while (root.load() == nullptr || (!has_begun() && !over.load())) std::this_thread::yield();
    root.load()->abort("enough");
    while (!over.load()) std::this_thread::yield();
  });
  test::run_ranks({}, [&](Communicator& c) {
    if (c.rank() == 0) root = &c;
    Call call;
    call.collective = Collective::kBroadcast;
    call.root = 0;
    call.count = kBytes;
    call.input = call.output = Blocks::single(c.rank() == 0 ? from : to.data(), kBytes);
    const Error error = test::error_of([&] { c.run(call); });
    if (c.rank() == 0) {
      EXPECT_EQ(::munmap(from, kBytes), 0);
      over = true;
    } else if (*error.what() != 0) {  // or it had all before
      EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos) << error.what();
    }
    if (c.rank() == 0) aborts.join();
  });
}

TEST(Pulled, EveryRankReadsWhatItNeeds) {
  if (!may_read()) {
    GTEST_SKIP() << "the system does not read processes' memory for them";
  }
  const auto channels = test::make_host_channels(kRanks, {.reads_memory = true});
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
