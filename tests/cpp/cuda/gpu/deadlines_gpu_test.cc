// Which deadline a call on a GPU has: its own, the group's where its own has been pushed out of the table or it was
// captured, and the group's as it is now.
#include <array>

#include "cuda/gpu/gpu_ranks.h"
#include "cuda/norm_case.h"
#include "tutti/device/wait.cuh"

namespace tutti::cuda::test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// No test waits so long: a call that has this deadline by mistake is found by that.
constexpr std::chrono::minutes kLong{3};

CaseShape sum(std::size_t count) {
  CaseShape shape;
  shape.count = count;
  return shape;
}

void expect_ends_soon(Rank& rank, Clock::time_point begin, const std::string& what) {
  TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
  EXPECT_LT(Clock::now() - begin, std::chrono::minutes(1)) << what << " had another deadline";
  const auto failure = rank.comm->failure();
  ASSERT_TRUE(failure.has_value()) << what;
  EXPECT_EQ(failure->kind(), ErrorKind::kTimeout) << what << ": " << failure->what();
}

// As many calls with deadlines of their own as the table has places: the oldest still has its own. One more takes its
// place, and leaves it the group's, not that call's.
TEST(Deadlines, TheTableHoldsThoseOf256Calls) {
  static_assert(device::kTimedCalls == 256, "docs/gpu.md names the number");
  for (const int more : {0, 1}) {
    GpuWorld world;
    run_gpu_ranks(world, [&](Rank& rank) {
      run_and_verify(rank, sum(500), 1);
      const CollectiveCase c(sum(500), rank.size, 2);
      const Buffers b = prepare(rank, c, rank.stream);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      rank.barrier->arrive_and_wait();
      if (rank.rank == 0) {
        const milliseconds soon{5000};  // long enough to issue all
        rank.comm->set_timeout(more == 0 ? milliseconds(kLong) : soon);
        const auto begin = Clock::now();
        rank.comm->run(b.call, rank.stream, more == 0 ? soon : milliseconds(kLong));
        for (std::uint32_t i = 1; i < device::kTimedCalls + static_cast<std::uint32_t>(more); ++i) {
          rank.comm->run(b.call, rank.stream, kLong);
        }
        expect_ends_soon(rank, begin, more == 0 ? "the oldest of 256 calls" : "the oldest of 257 calls");
      }
      rank.barrier->arrive_and_wait();
    });
  }
}

// Each kind of call, captured with a deadline that is over at once.
TEST(Deadlines, CapturedCallsFollowTheGroups) {
  for (const std::string kind : {"collective", "uneven", "messages", "norm", "norm in two kernels"}) {
    SCOPED_TRACE(kind);
    GpuWorld world;
    world.options.timeout = kLong;
    run_gpu_ranks(world, [&](Rank& rank) {
      constexpr std::size_t kBytes = 40'000;
      std::byte* const mine = rank.allocate(kBytes);
      std::byte* const theirs = rank.allocate(2 * kBytes);
      std::byte* const weight = rank.allocate(kBytes);
      TUTTI_CUDA_OK(cudaMemsetAsync(mine, rank.rank + 1, kBytes, rank.stream));
      TUTTI_CUDA_OK(cudaMemsetAsync(theirs, 0, 2 * kBytes, rank.stream));
      TUTTI_CUDA_OK(cudaMemsetAsync(weight, 0, kBytes, rank.stream));
      const auto issue = [&](milliseconds timeout) {
        Call call;
        call.dtype = DataType::kByte;
        call.count = kBytes;
        call.input = Blocks::single(mine, kBytes);
        if (kind == "collective") {
          call.collective = Collective::kAllGather;
          call.output = Blocks::single(theirs, kBytes);
          rank.comm->run(call, rank.stream, timeout);
        } else if (kind == "uneven") {
          // Sizes that only pairs know: it runs as messages, and is a collective all the same.
          const std::array<std::size_t, 2> sizes{kBytes / 2, kBytes / 2};
          const std::array<void*, 2> from{mine, mine + kBytes / 2}, to{theirs, theirs + kBytes / 2};
          call.collective = Collective::kAllToAll;
          call.uneven = true;
          call.count = 0;
          call.input = Blocks::list(from.data(), sizes.data());
          call.output = Blocks::list(to.data(), sizes.data());
          rank.comm->run(call, rank.stream, timeout);
        } else if (kind == "messages") {
          rank.comm->exchange({{true, mine, kBytes, 1 - rank.rank, 0}, {false, theirs, kBytes, 1 - rank.rank, 0}},
                              rank.stream, timeout);
        } else {
          NormShape shape;
          shape.rows = 1;
          shape.hidden = kind == "norm" ? 512 : 16'384;
          NormBuffers b{};
          b.input = mine;
          b.residual = b.weight = weight;
          b.residual_output = theirs;
          b.output = theirs + kBytes;
          rank.comm->serving()->all_reduce_add_rms_norm(norm_call(shape, b), rank.stream, timeout);
        }
      };
      issue({});
      rank.comm->synchronize(rank.stream);
      cudaGraphExec_t graph = capture(rank.stream, [&] { issue(milliseconds(1)); });
      make_ready(rank, graph);
      if (rank.rank == 0) {
        TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
        for (const auto end = Clock::now() + milliseconds(300); Clock::now() < end;) {
          ASSERT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady) << "it has not waited for its peer";
        }
      }
      rank.barrier->arrive_and_wait();
      if (rank.rank == 1) TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
      rank.comm->synchronize(rank.stream);
      rank.barrier->arrive_and_wait();
      if (rank.rank == 0) {
        const auto begin = Clock::now();
        TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
        rank.comm->set_timeout(milliseconds(500));  // the kernel may be waiting already
        expect_ends_soon(rank, begin, "a replay after the group's deadline has changed");
      }
      rank.barrier->arrive_and_wait();
      TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
    });
  }
}

}  // namespace
}  // namespace tutti::cuda::test
