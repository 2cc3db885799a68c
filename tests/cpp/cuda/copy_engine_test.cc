// Collectives by copy engines, on the host: the real plans and kernels' bodies, copies by memcpy, ranks as threads.
#include "algorithm/cuda/meet.cuh"
#include "algorithm/cuda/peer_copies.h"
#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

constexpr Collective kCopied[] = {Collective::kAllGather, Collective::kAllToAll, Collective::kBroadcast,
                                  Collective::kScatter,   Collective::kGather,   Collective::kAllReduce};
constexpr std::size_t kGuard = 64;

// Memory of all ranks with the case's buffers at the same offsets, the input before the output or in it.
struct MappedCase {
  MappedCase(const CaseShape& shape, int size, std::uint64_t seed) : c(shape, size, seed) {
    const std::size_t in = c.input_bytes(), out = c.output_bytes();
    const bool shared = shape.in_place;
    output_at = kGuard + (shared ? 0 : in + kGuard);
    total = output_at + std::max(in, out) + kGuard;
    for (int r = 0; r < size; ++r) {
      memory.emplace_back(total, std::byte{0xa5});
      // In place, the input of an all-gather is the rank's own block.
      const std::size_t input_at = shared ? output_at + (c.many_out() ? c.in_place_offset(r) : 0) : kGuard;
      inputs_at.push_back(input_at);
      const bool rooted = shape.collective == Collective::kBroadcast || shape.collective == Collective::kScatter;
      if (!rooted || r == shape.root) {
        std::memcpy(memory.back().data() + input_at, c.input(r).data(), in);
      }
    }
    for (auto& m : memory) data.push_back(m.data());
  }
  Call call(int r) {
    const auto i = static_cast<std::size_t>(r);
    return c.call(data[i] + inputs_at[i], data[i] + output_at);
  }

  CollectiveCase c;
  std::size_t output_at = 0, total = 0;
  std::vector<std::size_t> inputs_at;
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> data;
};

// What mapped_calls.cc enqueues on one rank.
void run_rank(MappedCase& m, HostRanks& ranks, int r) {
  const Call call = m.call(r);
  const SerialTeam team{0, 1};
  std::vector<std::byte*> inputs, outputs;
  for (int p = 0; p < ranks.size(); ++p) {
    inputs.push_back(m.data[static_cast<std::size_t>(p)] + m.inputs_at[static_cast<std::size_t>(p)]);
    outputs.push_back(m.data[static_cast<std::size_t>(p)] + m.output_at);
  }
  if (call.collective == Collective::kAllReduce) {
    const DirectArgs args = make_reduce_half(call, r, ranks.size(), 1, inputs.data(), outputs.data(), 7);
    direct_reduce_scatter<SumF32>(team, ranks.world(r), args);
  } else {
    meet(team, ranks.world(r), MeetArgs{7});
  }
  for (const PeerCopy& copy : peer_copies(call, r, ranks.size(), inputs.data(), outputs.data())) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  meet(team, ranks.world(r), MeetArgs{9});
}

void check_case(HostRanks& ranks, const CaseShape& shape, std::uint64_t seed) {
  SCOPED_TRACE(describe(shape, ranks.size()) + " seed " + std::to_string(seed));
  MappedCase m(shape, ranks.size(), seed);
  ASSERT_TRUE(copy_engines_can(m.call(0), ranks.size()));
  ranks.run([](int) { return 1; }, [&](int r, const SerialTeam&) { run_rank(m, ranks, r); });
  for (int r = 0; r < ranks.size(); ++r) {
    ASSERT_EQ(ranks.host(r).code, 0u) << "rank " << r << " failed";
    const std::vector<std::byte> want = m.c.expected(r);
    const std::vector<std::byte>& got = m.memory[static_cast<std::size_t>(r)];
    if (!want.empty()) {
      ASSERT_EQ(std::memcmp(got.data() + m.output_at, want.data(), want.size()), 0) << "rank " << r;
    }
    for (std::size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(got[i], std::byte{0xa5}) << "before the buffers of rank " << r;
      ASSERT_EQ(got[m.output_at - 1 - i], std::byte{0xa5}) << "before the output of rank " << r;
      ASSERT_EQ(got[m.total - 1 - i], std::byte{0xa5}) << "after the buffers of rank " << r;
    }
  }
}

TEST(CopyEngine, EveryCollective) {
  for (const int size : {2, 3, 8}) {
    HostRanks ranks(size);
    std::uint64_t seed = 1;
    for (const Collective collective : kCopied) {
      for (const bool in_place : {false, true}) {
        const bool may_be = collective == Collective::kAllGather || collective == Collective::kAllReduce ||
                            collective == Collective::kBroadcast;
        if (in_place && !may_be) continue;
        for (const std::size_t count : {std::size_t{4}, std::size_t{252}}) {
          CaseShape shape;
          shape.collective = collective;
          // An all-reduce divides into vectors of 16 bytes; the others have any size.
          shape.count = collective == Collective::kAllReduce ? count * static_cast<std::size_t>(size) : count - 1;
          shape.root = size - 1;
          shape.in_place = in_place;
          check_case(ranks, shape, ++seed);
        }
      }
    }
  }
}

// Copies of one call and reads of the last one do not overlap: the same buffers, call after call.
TEST(CopyEngine, CallsFollowEachOther) {
  constexpr int kRanks = 3, kCalls = 50;
  HostRanks ranks(kRanks);
  CaseShape shape;
  shape.collective = Collective::kAllGather;
  shape.count = 500;
  MappedCase m(shape, kRanks, 1);
  std::atomic<int> wrong{0};
  ranks.run([](int) { return 1; },
            [&](int r, const SerialTeam&) {
              std::byte* input = m.data[static_cast<std::size_t>(r)] + m.inputs_at[static_cast<std::size_t>(r)];
              const std::byte* output = m.data[static_cast<std::size_t>(r)] + m.output_at;
              for (int call = 0; call < kCalls; ++call) {
                std::memset(input, call * kRanks + r, m.c.input_bytes());
                run_rank(m, ranks, r);
                for (int p = 0; p < kRanks; ++p) {
                  for (std::size_t i = 0; i < m.c.input_bytes(); ++i) {
                    const auto want = static_cast<std::byte>(call * kRanks + p);
                    if (output[static_cast<std::size_t>(p) * m.c.input_bytes() + i] != want) wrong.fetch_add(1);
                  }
                }
              }
            });
  EXPECT_EQ(wrong.load(), 0);
}

TEST(CopyEngine, OtherCallsAreFound) {
  HostRanks ranks(2);
  ranks.host(0).timeout_ns = ranks.host(1).timeout_ns = 10'000'000'000;
  ranks.run([](int) { return 1; },
            [&](int r, const SerialTeam& team) { meet(team, ranks.world(r), MeetArgs{r == 0 ? 5u : 6u}); });
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(static_cast<device::FailureCode>(ranks.host(r).code), device::FailureCode::kMismatch);
  }
}

Call gather_of(std::size_t block) {
  static std::byte none{};
  Call call;
  call.collective = Collective::kAllGather;
  call.count = block;
  call.input = call.output = Blocks::single(&none, block);
  return call;
}

TEST(CopyEngine, IsChosenForLargeCallsAndByName) {
  constexpr std::size_t kMB = 1 << 20;
  const auto chosen = [](const Call& call, int size, const char* forced, bool between_gpus = true) {
    return choose_copy_engine(call, size, between_gpus, parse_forced(forced));
  };
  EXPECT_TRUE(chosen(gather_of(16 * kMB), 4, ""));
  EXPECT_FALSE(chosen(gather_of(16 * kMB - 16), 4, ""));
  EXPECT_FALSE(chosen(gather_of(16 * kMB), 4, "bulk_one_shot@16"));
  EXPECT_FALSE(chosen(gather_of(16 * kMB), 4, "", false));
  EXPECT_TRUE(chosen(gather_of(1000), 4, "copy_engine", false));
  EXPECT_FALSE(chosen(gather_of(0), 4, "copy_engine"));
  EXPECT_FALSE(chosen(gather_of(8 * kMB), 1, "copy_engine"));
  Call sum = gather_of(64 * kMB);
  sum.collective = Collective::kAllReduce;
  EXPECT_FALSE(chosen(sum, 4, ""));
  Call large_sum = gather_of(128 * kMB);
  large_sum.collective = Collective::kAllReduce;
  EXPECT_TRUE(chosen(large_sum, 4, ""));
  large_sum = gather_of(128 * kMB - 64);
  large_sum.collective = Collective::kAllReduce;
  EXPECT_FALSE(chosen(large_sum, 4, ""));
  EXPECT_TRUE(chosen(large_sum, 4, "copy_engine"));
  EXPECT_TRUE(chosen(sum, 4, "copy_engine@16"));
  EXPECT_FALSE(chosen(sum, 3, "copy_engine")) << "64 MB do not divide into vectors for three";
  sum.op = ReduceOp::kPremulSum;
  EXPECT_FALSE(chosen(sum, 4, "copy_engine"));
  sum.op = ReduceOp::kSum;
  sum.collective = Collective::kReduceScatter;
  EXPECT_FALSE(chosen(sum, 4, "copy_engine"));
  sum.collective = Collective::kAllToAll;
  EXPECT_TRUE(chosen(sum, 4, ""));
  sum.collective = Collective::kBroadcast;
  EXPECT_FALSE(chosen(sum, 4, ""));
  EXPECT_TRUE(chosen(sum, 4, "copy_engine"));
  sum.uneven = true;
  EXPECT_FALSE(chosen(sum, 4, "copy_engine"));
}

TEST(CopyEngine, ItsNameForcesNothingElsewhere) {
  const std::vector<std::string> names = algorithm_names();
  EXPECT_NE(std::find(names.begin(), names.end(), "copy_engine"), names.end());
  const CudaShape shape{Collective::kAllReduce, DataType::kFloat32, 4, 1 << 20, kMaxBlocks, true};
  EXPECT_EQ(to_string(choose(shape, parse_forced("copy_engine"))), to_string(choose(shape, std::nullopt)));
  EXPECT_EQ(parse_forced("copy_engine@16")->blocks, 16);
  EXPECT_THROW(static_cast<void>(parse_forced("copy_engines")), Error);
}

}  // namespace
}  // namespace tutti::cuda::test
