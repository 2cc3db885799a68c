// How communicators end under NCCL's name on GPUs: finalized, aborted while kernels wait, and those that do not block.
#include "nccl/gpu/nccl_gpu_ranks.h"

namespace nccl_test {
namespace {

ncclResult_t await(ncclComm_t comm) {
  ncclResult_t now = ncclInProgress;
  while ((now = state(comm)) == ncclInProgress) std::this_thread::yield();
  return now;
}

ncclComm_t without_blocking(const GpuRank& rank, const ncclUniqueId& id) {
  const ncclComm_t comm = begin_without_blocking(rank.size, id, rank.rank);
  EXPECT_EQ(await(comm), ncclSuccess);
  return comm;
}

// A call that rank 1 does not make: rank 0's kernel waits for it.
void hang(GpuRank& rank) {
  if (rank.rank != 0) return;
  const CollectiveCase c(sum_of(70'000), rank.size, 5);
  const Buffers b = prepare(rank, c, rank.stream);
  expect_success(issue(rank.nccl, c.shape(), b, ncclSum, rank.stream), "a call");
  EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
}

TEST(NcclEndsOnGpu, FinalizeWaitsForKernels) {
  run_gpu_threads(2, [](GpuRank& rank) {
    const CollectiveCase c(sum_of(300'000), rank.size, 1);
    const Buffers b = prepare(rank, c, rank.stream);
    // CUDA copies pageable memory under a lock of the process and behind what the stream does: behind a kernel that
    // waits for the other rank it would hold up that rank's copy.
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    for (int i = 0; i < 50; ++i) {
      expect_success(issue(rank.nccl, c.shape(), b, ncclSum, rank.stream), "a call");
    }
    expect_success(ncclCommFinalize(rank.nccl), "its end");
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaSuccess);
    verify(rank, c, b, "behind its end");
    expect_success(ncclCommDestroy(rank.nccl), "its destruction");
  });
}

TEST(NcclEndsOnGpu, AbortEndsAKernelThatWaits) {
  run_gpu_threads(2, [](GpuRank& rank) {
    run_and_check(rank, sum_of(100), 1);
    hang(rank);
    rank.barrier->arrive_and_wait();  // an abort reaches the peers' kernels, too
    expect_success(ncclCommAbort(rank.nccl), "an abort");
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
  });
}

// As a watchdog does it, from another thread than the one that waits.
TEST(NcclEndsOnGpu, AbortEndsWhatFinalizeWaitsFor) {
  run_gpu_threads(2, [](GpuRank& rank) {
    run_and_check(rank, sum_of(100), 1);
    hang(rank);
    if (rank.rank != 0) return rank.barrier->arrive_and_wait();
    std::barrier<> begun(2);
    std::thread ending([&] {
      TUTTI_CUDA_OK(cudaSetDevice(rank.device));
      begun.arrive_and_wait();
      static_cast<void>(ncclCommFinalize(rank.nccl));  // it is aborted meanwhile
    });
    begun.arrive_and_wait();
    expect_success(ncclCommAbort(rank.nccl), "an abort");
    ending.join();
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
  });
}

TEST(NcclEndsOnGpu, WithoutBlocking) {
  run_gpu_threads(2, without_blocking, [](GpuRank& rank) {
    run_and_check(rank, sum_of(1000), 1);
    run_and_check(rank, sum_of(70'000), 2);
    EXPECT_EQ(ncclCommFinalize(rank.nccl), ncclSuccess);
    EXPECT_EQ(await(rank.nccl), ncclSuccess);
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaSuccess);
    expect_success(ncclCommDestroy(rank.nccl), "its destruction");
  });
}

TEST(NcclEndsOnGpu, WithoutBlockingAbortEndsWhatFinalizeLeftRunning) {
  run_gpu_threads(2, without_blocking, [](GpuRank& rank) {
    run_and_check(rank, sum_of(100), 1);
    hang(rank);
    if (rank.rank == 0) {
      EXPECT_EQ(ncclCommFinalize(rank.nccl), ncclSuccess);
      for (int i = 0; i < 100; ++i) EXPECT_EQ(state(rank.nccl), ncclInProgress);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
      expect_success(ncclCommAbort(rank.nccl), "an abort");
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    }
    rank.barrier->arrive_and_wait();
  });
}

// Different calls on the ranks: both hear of it, and the kernels end.
TEST(NcclEndsOnGpu, DifferentCallsAreAnAsynchronousError) {
  run_gpu_threads(2, [](GpuRank& rank) {
    run_and_check(rank, sum_of(100), 1);
    const CollectiveCase c(sum_of(rank.rank == 0 ? 1000 : 2000), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    expect_success(issue(rank.nccl, c.shape(), b, ncclSum, rank.stream), "a call");
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    EXPECT_EQ(state(rank.nccl), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(rank.nccl)).find("rank"), std::string::npos);
    EXPECT_EQ(ncclCommFinalize(rank.nccl), ncclInvalidUsage);
  });
}

}  // namespace
}  // namespace nccl_test
