// Programs' own kernels as a GPU runs them, on the host: every thread of every block of every rank is a thread.
#include "algorithm/cuda/native_call.cuh"
#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"
#include "cuda/native_kernels.cu"
#include "cuda/thread_team.h"

namespace tutti::cuda::test {
namespace {

#define TUTTI_TESTED_BODY(name, function) \
  struct name {                           \
    template <class Context>              \
    static bool run(Context& context) {   \
      return ::function(context);         \
    }                                     \
  }
TUTTI_TESTED_BODY(Gather, scratch_all_gather);
TUTTI_TESTED_BODY(Sum, packet_all_reduce);
TUTTI_TESTED_BODY(Scatter, signal_reduce_scatter);
TUTTI_TESTED_BODY(Broadcast, packet_broadcast);
TUTTI_TESTED_BODY(Nothing, nothing);
TUTTI_TESTED_BODY(Greedy, greedy);
TUTTI_TESTED_BODY(Forgetful, forgetful);

// How a call is launched. `workers` 0: a block is one thread.
struct How {
  int blocks = 1, workers = 0;
};

// One kernel's memory on all ranks, and its calls.
class HostKernel {
 public:
  explicit HostKernel(int ranks, std::size_t scratch = 64 << 10)
      : scratch_(scratch), worlds(ranks), states(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) memory_.emplace_back((kNativeWords + scratch) / sizeof(Pair64));
  }

  std::byte* scratch(int r) { return memory(r) + kNativeWords; }

  // The outputs, by rank. `silent`: a rank that does not come; `other`: one that makes another call.
  template <class Body>
  std::vector<std::vector<std::byte>> run(const CollectiveCase& c, const How& how, int silent = -1, int other = -1) {
    const int ranks = worlds.size();
    std::vector<std::vector<std::byte>> outputs;
    std::vector<NativeArgs> args;
    std::vector<std::vector<std::byte>> inputs;
    for (int r = 0; r < ranks; ++r) {
      inputs.push_back(c.input(r));
      outputs.emplace_back(std::max<std::size_t>(1, c.output_bytes()), std::byte{0xa5});
    }
    for (int r = 0; r < ranks; ++r) args.push_back(args_of(c, r, inputs[at(r)], outputs[at(r)], r == other ? 8 : 7));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      for (int b = 0; r != silent && b < how.blocks; ++b) {
        threads.emplace_back([&, r, b] {
          if (how.workers == 0) return run_one<Body>(SerialTeam{b, how.blocks}, r, args[at(r)]);
          run_block(
              how.workers, [&](const ThreadTeam& team) { run_one<Body>(team, r, args[at(r)]); }, b, how.blocks);
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    return outputs;
  }

 private:
  static std::size_t at(int r) { return static_cast<std::size_t>(r); }
  std::byte* memory(int r) { return reinterpret_cast<std::byte*>(memory_[at(r)].data()); }

  template <class Body, class Team>
  void run_one(const Team& team, int r, const NativeArgs& args) {
    if (args.spec.dtype == DataType::kFloat32 && args.spec.op == ReduceOp::kSum) {
      run_native_block<SumF32, Body>(team, worlds.world(r), args);
    } else {
      run_native_block<ReduceAny, Body>(team, worlds.world(r), args);
    }
  }

  NativeArgs args_of(const CollectiveCase& c, int r, std::vector<std::byte>& input, std::vector<std::byte>& output,
                     std::uint32_t fingerprint) {
    NativeArgs args;
    const CaseShape& shape = c.shape();
    const int ranks = worlds.size();
    for (int p = 0; p < ranks; ++p) args.memory[p] = memory(p);
    args.state = &states[at(r)];
    args.block_bytes = shape.count * size_of(shape.dtype);
    for (int b = 0; b < (c.many_in() ? ranks : 1); ++b) args.user[b] = input.data() + at(b) * args.block_bytes;
    for (int b = 0; b < (c.many_out() ? ranks : 1); ++b) {
      args.user[kNativeBlocks + b] = output.data() + at(b) * args.block_bytes;
    }
    args.scratch_bytes = scratch_;
    args.element_bytes = static_cast<std::uint32_t>(size_of(shape.dtype));
    args.root = shape.root;
    args.fingerprint = fingerprint;
    args.ticket = ++ticket_;
    args.averages = shape.op == ReduceOp::kAvg ? 1 : 0;
    args.spec.dtype = shape.dtype;
    args.spec.op = args.averages != 0 ? ReduceOp::kSum : shape.op;
    args.spec.divisor = ranks;
    return args;
  }

  const std::size_t scratch_;
  std::vector<std::vector<Pair64>> memory_;
  std::uint32_t ticket_ = 0;

 public:
  HostRanks worlds;
  std::vector<NativeState> states;
};

CaseShape shape_of(Collective collective, std::size_t count, DataType dtype = DataType::kFloat32,
                   ReduceOp op = ReduceOp::kSum) {
  CaseShape shape;
  shape.collective = collective;
  shape.count = count;
  shape.dtype = dtype;
  shape.op = op;
  return shape;
}

template <class Body>
void expect_right(HostKernel& kernel, const CaseShape& shape, const How& how, std::uint64_t seed) {
  const int ranks = kernel.worlds.size();
  const CollectiveCase c(shape, ranks, seed);
  const auto outputs = kernel.run<Body>(c, how);
  for (int r = 0; r < ranks; ++r) {
    ASSERT_EQ(kernel.worlds.host(r).code, 0u) << describe(shape, ranks) << ", rank " << r;
    const std::vector<std::byte> want = c.expected(r);
    if (shape.collective == Collective::kBroadcast && r == shape.root) continue;  // which gives its only buffer
    ASSERT_TRUE(std::equal(want.begin(), want.end(), outputs[static_cast<std::size_t>(r)].begin()))
        << describe(shape, ranks) << ", rank " << r << ", " << how.blocks << " blocks of " << how.workers;
  }
}

// Calls of other sizes and other numbers of blocks and threads follow each other in the same scratch: what an earlier
// one has left there is never taken for this one's.
TEST(NativeKernels, ManyCallsInOneScratch) {
  for (const int ranks : {2, 3}) {
    HostKernel gather(ranks), sum(ranks), scatter(ranks), broadcast(ranks);
    std::uint64_t seed = 0;
    for (const std::size_t count : {1, 7, 64, 1001, 1003, 20}) {
      for (const How& how : {How{1, 0}, How{3, 0}, How{2, 3}, How{1, 2}, How{5, 1}}) {
        expect_right<Gather>(gather, shape_of(Collective::kAllGather, count * 5), how, ++seed);
        expect_right<Sum>(sum, shape_of(Collective::kAllReduce, count), how, ++seed);
        expect_right<Scatter>(scatter, shape_of(Collective::kReduceScatter, count), how, ++seed);
        CaseShape rooted = shape_of(Collective::kBroadcast, count);
        rooted.root = static_cast<int>(seed) % ranks;
        expect_right<Broadcast>(broadcast, rooted, how, ++seed);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(NativeKernels, TypesAndOperations) {
  HostKernel sum(3), scatter(3);
  std::uint64_t seed = 0;
  for (const auto& [dtype, op] : {std::pair{DataType::kBfloat16, ReduceOp::kSum},
                                  {DataType::kFloat16, ReduceOp::kAvg},
                                  {DataType::kFloat32, ReduceOp::kAvg},
                                  {DataType::kFloat64, ReduceOp::kMax},
                                  {DataType::kInt8, ReduceOp::kBxor},
                                  {DataType::kInt64, ReduceOp::kProduct}}) {
    for (const std::size_t count : {3, 201}) {
      expect_right<Sum>(sum, shape_of(Collective::kAllReduce, count, dtype, op), {2, 2}, ++seed);
      expect_right<Scatter>(scatter, shape_of(Collective::kReduceScatter, count, dtype, op), {2, 0}, ++seed);
    }
  }
}

// Flags come round past 2^32 - 1, none of them is zero, which is what new memory holds, and words still rise.
TEST(NativeKernels, CallsMayPassTheLastFlag) {
  HostKernel sum(2), gather(2);
  for (HostKernel* const kernel : {&sum, &gather}) {
    for (NativeState& state : kernel->states) state.calls = 0xfffffffcu;
  }
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    expect_right<Sum>(sum, shape_of(Collective::kAllReduce, 100 * seed), {2, 0}, seed);
    expect_right<Gather>(gather, shape_of(Collective::kAllGather, 4000), {2, 0}, seed);
  }
  EXPECT_EQ(sum.states[0].calls, 0x100000002u);
  // In new memory a rank would only have to look before its peer has written.
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    HostKernel fresh(2);
    for (NativeState& state : fresh.states) state.calls = 0xffffffffu;
    expect_right<Sum>(fresh, shape_of(Collective::kAllReduce, 2000), {2, 0}, seed);
  }
}

// Every wait ends, the rank that did not come is named, and the call is not counted as complete.
TEST(NativeKernels, AMissingRankIsATimeout) {
  for (const How& how : {How{2, 0}, How{2, 3}}) {
    HostKernel kernel(3);
    for (int r = 0; r < 3; ++r) kernel.worlds.host(r).timeout_ns = 200'000'000;
    static_cast<void>(kernel.run<Sum>(CollectiveCase(shape_of(Collective::kAllReduce, 100), 3, 1), how, /*silent=*/1));
    for (const int r : {0, 2}) {
      EXPECT_EQ(kernel.worlds.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout));
      EXPECT_EQ(kernel.worlds.host(r).peer, 1u);
      for (int b = 0; b < how.blocks; ++b) {
        const std::uint64_t progress = *progress_of(*kernel.worlds.world(r).state, b);
        EXPECT_NE(static_cast<std::uint32_t>(progress), static_cast<std::uint32_t>(progress >> 32)) << "block " << b;
      }
    }
  }
}

// One lane waits in vain, and all threads of the block leave.
TEST(NativeKernels, PacketsThatDoNotComeAreATimeout) {
  HostKernel kernel(2);
  kernel.worlds.host(0).timeout_ns = 50'000'000;  // the other, were it as impatient, might be the first to say so
  kernel.worlds.host(1).timeout_ns = 20'000'000'000;
  static_cast<void>(kernel.run<Forgetful>(CollectiveCase(shape_of(Collective::kAllReduce, 5), 2, 1), {1, 3}));
  EXPECT_EQ(kernel.worlds.host(0).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout));
  EXPECT_EQ(kernel.worlds.host(0).peer, 1u);
}

// The program's code does not begin where ranks make different calls: nobody's scratch is written.
TEST(NativeKernels, AnotherCallTouchesNothing) {
  HostKernel kernel(2);
  static_cast<void>(
      kernel.run<Sum>(CollectiveCase(shape_of(Collective::kAllReduce, 100), 2, 1), {3, 2}, -1, /*other=*/1));
  for (const int r : {0, 1}) {
    EXPECT_EQ(kernel.worlds.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kMismatch));
    EXPECT_TRUE(
        std::all_of(kernel.scratch(r), kernel.scratch(r) + (64 << 10), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(NativeKernels, GivingUpIsAFailureOfAll) {
  HostKernel kernel(2);
  static_cast<void>(kernel.run<Nothing>(CollectiveCase(shape_of(Collective::kAllReduce, 100), 2, 1), {2, 2}));
  for (const int r : {0, 1}) {
    EXPECT_EQ(kernel.worlds.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kGaveUp));
  }
}

// As on CPUs.
TEST(NativeKernels, MoreRangesThanThereMayBeRanksAreRefused) {
  HostKernel kernel(2);
  static_cast<void>(kernel.run<Greedy>(CollectiveCase(shape_of(Collective::kAllReduce, 100), 2, 1), {2, 2}));
  for (const int r : {0, 1}) {
    EXPECT_EQ(kernel.worlds.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kGaveUp));
  }
}

}  // namespace
}  // namespace tutti::cuda::test
