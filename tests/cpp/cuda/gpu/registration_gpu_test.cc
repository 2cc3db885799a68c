// Memory of the caller's own, registered: ranks as threads, which use each other's pointers.
#include "cuda/gpu/registered_case.h"

namespace tutti::cuda::test {
namespace {

constexpr std::size_t kMB = std::size_t{1} << 20;

class RegisteredKinds : public testing::TestWithParam<MemoryKind> {};

TEST_P(RegisteredKinds, CallsRunWithoutCopies) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const auto memory = make_memory(GetParam(), rank.device, 24);
    std::byte* const data = memory.get() + 512 * (rank.rank + 1);  // the ranks' ranges lie differently
    auto regions = rank.comm->register_memory({{data, 20 * kMB}, {data + 21 * kMB, 2 * kMB}});
    EXPECT_TRUE(rank.comm->is_registered(data + 1, 20 * kMB - 1));
    EXPECT_FALSE(rank.comm->is_registered(data, 21 * kMB));
    constexpr std::size_t kCount = 600'001;
    std::byte* const elsewhere = rank.allocate(8 * kMB);
    for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
      const CollectiveCase c(sum_of(collective, kCount), rank.size, 1 + static_cast<std::uint64_t>(collective));
      const std::string what = std::string(to_string(collective)) + " in memory of " + name_of(GetParam());
      run_registered(rank, c, data, data + 10 * kMB, true, what);
      run_registered(rank, c, data + 8, data + 10 * kMB + 4, true, what + ", unaligned");
      // What only the rank itself touches may lie anywhere, and elsewhere on each rank.
      if (collective == Collective::kReduceScatter) run_registered(rank, c, data, elsewhere, true, what + ", output");
      if (collective == Collective::kAllGather) run_registered(rank, c, elsewhere, data, true, what + ", input");
    }
    const CollectiveCase small(sum_of(Collective::kAllReduce, 1000), rank.size, 7);
    run_registered(rank, small, data, data + 10 * kMB, false, "a small call");
    CaseShape shape = sum_of(Collective::kAllReduce, 300'000);
    shape.in_place = true;
    const CollectiveCase in_place(shape, rank.size, 8);
    run_registered(rank, in_place, data + 21 * kMB, data + 21 * kMB, true, "in place, in the second range");
    rank.comm->unregister_memory(std::move(regions));
    EXPECT_FALSE(rank.comm->is_registered(data, 1));
    run_registered(rank, in_place, data, data, false, "after it was unregistered");
    rank.barrier->arrive_and_wait();  // nothing is freed while a peer's kernel may run
  });
}

INSTANTIATE_TEST_SUITE_P(Cuda, RegisteredKinds,
                         testing::Values(MemoryKind::kMalloc, MemoryKind::kSegments, MemoryKind::kPool));

TEST(Registered, GraphsReplayWithChangingData) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    std::byte* const data = rank.allocate(4 * kMB);
    rank.comm->register_memory({{data, 4 * kMB}});
    CaseShape shape = sum_of(Collective::kAllReduce, 500'000);
    shape.in_place = true;
    const Call call = CollectiveCase(shape, rank.size, 0).call(data, data);
    cudaGraphExec_t executable = capture(rank.stream, [&] { rank.comm->run(call, rank.stream); });
    EXPECT_EQ(rank.comm->direct_calls(), 1u);
    make_ready(rank, executable);
    for (std::uint64_t round = 1; round <= 5; ++round) {
      const CollectiveCase c(shape, rank.size, round);
      const Buffers b = buffers_at(rank, c, data, data);
      TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
      rank.comm->synchronize(rank.stream);
      verify(rank, c, b, "replay " + std::to_string(round));
    }
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
  });
}

TEST(Registered, DifferentOffsetsAreAnErrorThatSaysSo) {
  for (const bool one_without : {false, true}) {
    GpuWorld world;
    run_gpu_ranks(world, [&](Rank& rank) {
      std::byte* const data = rank.allocate(4 * kMB);
      std::byte* const elsewhere = rank.allocate(4 * kMB);
      rank.comm->register_memory({{data, 4 * kMB}});
      std::byte* const used = rank.rank == 0 ? data : one_without ? elsewhere : data + 64;
      const CollectiveCase c(sum_of(Collective::kAllReduce, 300'000), rank.size, 1);
      rank.comm->run(c.call(used, used), rank.stream);
      std::string text = "nothing was raised";
      try {
        rank.comm->synchronize(rank.stream);
      } catch (const Error& e) {
        text = e.what();
        EXPECT_TRUE(e.kind() == ErrorKind::kMismatch || e.kind() == ErrorKind::kPeerLost) << text;
      }
      if (text.find("different calls") != std::string::npos) {
        EXPECT_NE(text.find(rank.rank == 0 ? "input in range 1 at byte 0"
                            : one_without  ? "it uses no registered memory"
                                           : "input in range 1 at byte 64"),
                  std::string::npos)
            << text;
      }
      EXPECT_NE(text, "nothing was raised");
      rank.barrier->arrive_and_wait();
    });
  }
}

// Other offsets, and one rank's memory not registered: by kernels, an error on all ranks before any of them has written
// to a peer, or to its own output.
TEST(Registered, ABrokenPromiseTouchesNoMemory) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather}) {
    for (const bool one_without : {false, true}) {
      run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
        const std::size_t whole = 20 * kMB;  // of each allocation; all of it is looked at
        std::byte* const data = rank.allocate(whole);
        std::byte* const elsewhere = rank.allocate(whole);
        rank.comm->register_memory({{data, whole}});
        TUTTI_CUDA_OK(cudaMemsetAsync(data, 0x11 * (rank.rank + 1), whole, rank.stream));
        TUTTI_CUDA_OK(cudaMemsetAsync(elsewhere, 0x33, whole, rank.stream));
        TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
        rank.barrier->arrive_and_wait();
        std::byte* const used = rank.rank == 0 ? data : one_without ? elsewhere : data + 4096;
        const CollectiveCase c(sum_of(collective, 600'000), rank.size, 1);
        rank.comm->run(c.call(used, used + 10 * kMB), rank.stream);
        EXPECT_THROW(rank.comm->synchronize(rank.stream), Error);
        rank.barrier->arrive_and_wait();  // no kernel runs any more
        const auto byte = static_cast<std::byte>(0x11 * (rank.rank + 1));
        EXPECT_EQ(rank.download(data, whole), std::vector<std::byte>(whole, byte))
            << to_string(collective) << " on rank " << rank.rank;
        EXPECT_EQ(rank.comm->direct_calls(), rank.rank == 1 && one_without ? 0u : 1u);
        rank.barrier->arrive_and_wait();
      });
    }
  }
}

// What no other process could map is refused among threads too.
TEST(Registered, MemoryOfCudaMallocAsyncIsRefused) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    void* pooled = nullptr;
    TUTTI_CUDA_OK(cudaMallocAsync(&pooled, 4 * kMB, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    std::byte* const plain = rank.allocate(4 * kMB);
    std::string text = "nothing was raised";
    try {
      rank.comm->register_memory({{rank.rank == 1 ? pooled : plain, 4 * kMB}});
    } catch (const Error& e) {
      text = e.what();
    }
    EXPECT_NE(text.find("rank 1 cannot share its memory"), std::string::npos) << text;
    EXPECT_NE(text.find("cudaMallocAsync"), std::string::npos) << text;
    EXPECT_FALSE(rank.comm->is_registered(plain, 1));
    TUTTI_CUDA_OK(cudaFreeAsync(pooled, rank.stream));
    run_and_verify(rank, sum_of(Collective::kAllReduce, 1000), 3);
    rank.barrier->arrive_and_wait();
  });
}

TEST(Registered, OneRankThatCannotIsEverybodysError) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    std::byte* const data = rank.allocate(4 * kMB);
    std::vector<std::byte> on_host(4096);
    const auto refusal = [&](const CudaRange& range) {
      try {
        rank.comm->register_memory({range});
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string("nothing was raised");
    };
    std::string text = refusal(rank.rank == 1 ? CudaRange{on_host.data(), 4096} : CudaRange{data, 4096});
    EXPECT_NE(text.find("rank 1 cannot share its memory: the memory to register is not memory of CUDA device"),
              std::string::npos)
        << text;
    text = refusal({data, rank.rank == 1 ? 100u : 200u});
    EXPECT_NE(text.find("range 0 has 100 bytes on rank 1 and 200 on rank 0"), std::string::npos) << text;
    const auto regions = rank.comm->register_memory({{data, kMB}});
    text = refusal({data + kMB - 16, 32});
    EXPECT_NE(text.find("registered already"), std::string::npos) << text;
    rank.comm->unregister_memory(regions);
    EXPECT_THROW(rank.comm->unregister_memory(regions), Error);
    run_and_verify(rank, sum_of(Collective::kAllReduce, 1000), 3);
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
