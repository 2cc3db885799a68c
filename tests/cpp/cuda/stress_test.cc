// Up to thousands of random calls on one group without a pause between them, with random delays at every step of the
// protocols (this program is compiled with TUTTI_RANDOM_DELAYS). The kernels' bodies on the host.
#include <atomic>
#include <chrono>

#include "cuda/host_ranks.h"
#include "cuda/stress_calls.h"

namespace tutti::cuda::test {
namespace {

constexpr const char* kAlgorithms[] = {"ll_one_shot@2", "ll128_one_shot@1", "bulk_one_shot@2",
                                       "ll_two_shot@1", "ll128_two_shot@2", "bulk_two_shot@1"};
constexpr int kMostBlocks = 2;

struct Prepared {
  StressCall stress;
  Choice choice;
};

std::vector<Prepared> prepare(std::uint64_t seed, std::size_t calls, int size, std::uint64_t first_sequence) {
  std::vector<Prepared> result;
  std::mt19937_64 random(seed + 1);
  for (const StressCall& stress : stress_program(seed, calls, size, 700, first_sequence)) {
    std::byte none{};
    CudaShape shape{stress.collective,
                    DataType::kUint32,
                    size,
                    agreed_bytes(call_of(stress, &none, &none), size),
                    kMostBlocks,
                    true};
    Choice choice = choose(shape, parse_forced(kAlgorithms[random() % std::size(kAlgorithms)]));
    // Small pieces, so that a call goes around the ring.
    if (choice.protocol == Protocol::kBulk) choice.piece_bytes = 16 * (1 + random() % 8);
    result.push_back({stress, choice});
  }
  return result;
}

// What nobody waits for may hold anything.
void poison_data(const DeviceWorld& world) {
  for (int src = 0; src < world.size; ++src) {
    for (int block = 0; block < kMostBlocks; ++block) {
      for (std::size_t piece = 0; piece < kBulkDepth; ++piece) {
        for (int phase = 0; phase < kPhases; ++phase) {
          std::memset(world.scratch[world.rank] + world.layout.bulk(block, phase, piece, src), 0xa5, 4096);
        }
      }
    }
  }
}

// A busy machine makes fewer calls. Rank 0 sets the last one, so far ahead that no rank has passed it: every call waits
// for all ranks.
struct Budget {
  explicit Budget(std::size_t most) : calls(most) {}
  void look(std::size_t index) {
    constexpr std::size_t kAhead = 16;
    if (std::chrono::steady_clock::now() < end || index + kAhead >= calls.load(std::memory_order_relaxed)) return;
    calls.store(index + kAhead, std::memory_order_relaxed);
    end = std::chrono::steady_clock::time_point::max();
  }
  std::atomic<std::size_t> calls;
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
};

// The blocks of a rank are threads. Both make each call when its buffers are ready: the last of them to leave a call
// looks at the output. Buffers are used in turn.
class StressRank {
 public:
  static constexpr std::size_t kBuffers = 4;
  StressRank(const std::vector<Prepared>& calls, int rank, int size) : calls_(calls), rank_(rank), size_(size) {
    for (auto& buffer : buffers_) buffer.resize(static_cast<std::size_t>(size) * 700 * 2);
  }

  void run(const SerialTeam& thread, const DeviceWorld& world, Budget& budget, std::atomic<bool>& wrong,
           std::string& what) {
    // relaxed: the limit lies ahead of every rank when it is set, and calls order what comes before it.
    for (std::size_t i = 0; i < budget.calls.load(std::memory_order_relaxed); ++i) {
      if (rank_ == 0 && thread.block_index == 0) budget.look(i);
      const Choice& choice = calls_[i].choice;
      if (thread.block_index == 0) {
        // acquire: the other block has left the call that had these buffers.
        while (left_.load(std::memory_order_acquire) + kBuffers <= i) std::this_thread::yield();
        fill(i);
        made_.store(i + 1, std::memory_order_release);  // release: the input is there
      }
      while (made_.load(std::memory_order_acquire) <= i) std::this_thread::yield();
      if (thread.block_index < choice.blocks) {
        const SerialTeam team{thread.block_index, choice.blocks};
        HostRanks::launch(team, world, call_of(calls_[i].stress, input(i), output(i)), choice, 7);
      }
      // acq_rel: the last one sees what the others have written.
      if (ended_[i % kBuffers].fetch_add(1, std::memory_order_acq_rel) + 1 < kMostBlocks) continue;
      ended_[i % kBuffers].store(0, std::memory_order_relaxed);
      if (!wrong.load(std::memory_order_relaxed) && !check(i, what)) wrong.store(true, std::memory_order_relaxed);
      // In order: the buffers of call i + 1 cannot be freed before those of call i. release: see above.
      while (left_.load(std::memory_order_acquire) != i) std::this_thread::yield();
      left_.store(i + 1, std::memory_order_release);
    }
  }

 private:
  std::uint32_t* words(std::size_t i) { return buffers_[i % kBuffers].data(); }
  std::byte* input(std::size_t i) { return reinterpret_cast<std::byte*>(words(i)); }
  std::byte* output(std::size_t i) {
    const StressCall& c = calls_[i].stress;
    return c.in_place ? input(i) : reinterpret_cast<std::byte*>(words(i) + stress_inputs(c, size_));
  }
  void fill(std::size_t i) {
    const StressCall& c = calls_[i].stress;
    for (auto& word : buffers_[i % kBuffers]) word = 0xa5a5a5a5u;
    if (c.collective == Collective::kBroadcast && rank_ != c.root) return;
    for (std::size_t k = 0; k < stress_inputs(c, size_); ++k) words(i)[k] = stress_value(c, rank_, k);
  }
  bool check(std::size_t i, std::string& what) {
    const StressCall& c = calls_[i].stress;
    const auto* got = reinterpret_cast<const std::uint32_t*>(output(i));
    for (std::size_t k = 0; stress_receives(c, rank_) && k < stress_outputs(c, size_); ++k) {
      const std::uint32_t want = stress_expected(c, rank_, size_, k);
      if (got[k] == want) continue;
      what = describe(c, i) + " by " + to_string(calls_[i].choice) + ": element " + std::to_string(k) + " is " +
             std::to_string(got[k]) + ", not " + std::to_string(want);
      return false;
    }
    return true;
  }

  const std::vector<Prepared>& calls_;
  const int rank_, size_;
  std::vector<std::uint32_t> buffers_[kBuffers];
  std::atomic<std::size_t> made_{0}, left_{0};
  std::atomic<int> ended_[kBuffers] = {};
};

void stress(int size, std::size_t calls, std::uint64_t first_sequence) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed) + ", first sequence " + std::to_string(first_sequence));
  const std::vector<Prepared> program = prepare(seed, calls, size, first_sequence);
  HostRanks ranks(size, first_sequence);
  std::vector<std::unique_ptr<StressRank>> sides;
  std::vector<std::string> what(static_cast<std::size_t>(size));
  std::atomic<bool> wrong{false};
  Budget budget(program.size());
  for (int r = 0; r < size; ++r) {
    poison_data(ranks.world(r));
    sides.push_back(std::make_unique<StressRank>(program, r, size));
  }
  ranks.run([](int) { return kMostBlocks; },
            [&](int r, const SerialTeam& team) {
              const auto at = static_cast<std::size_t>(r);
              sides[at]->run(team, ranks.world(r), budget, wrong, what[at]);
            });
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(ranks.host(r).code, 0u) << "rank " << r << " failed";
    EXPECT_EQ(what[static_cast<std::size_t>(r)], "") << "rank " << r;
  }
}

constexpr std::size_t kCalls = 2000;  // at most

TEST(Stress, AcrossTheWrapOfTheSequence) { stress(3, kCalls, (std::uint64_t{1} << 32) - 50); }
TEST(Stress, AcrossTheWrapOfTheFlag) { stress(2, kCalls, device::kFlagPeriod - 50); }
TEST(Stress, FromTheStart) { stress(4, kCalls, 0); }

}  // namespace
}  // namespace tutti::cuda::test
