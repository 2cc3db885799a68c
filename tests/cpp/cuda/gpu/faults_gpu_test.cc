// What goes wrong ends: peers that do not come, other calls, aborts, overlap. No kernel stays on the GPU.
#include <atomic>

#include "cuda/gpu/gpu_ranks.h"

namespace tutti::cuda::test {
namespace {

CaseShape sum(std::size_t count) {
  CaseShape shape;
  shape.count = count;
  return shape;
}

ErrorKind kind_of(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& e) {
    if (text != nullptr) *text = e.what();
    return e.kind();
  }
  return ErrorKind::kInternal;
}

class Faults : public testing::TestWithParam<std::string> {};

TEST_P(Faults, MissingPeerIsATimeout) {
  GpuWorld world;
  world.size = 3;
  world.options.settings().cuda_algorithm = GetParam();
  run_gpu_ranks(world, [&](Rank& rank) {
    run_and_verify(rank, sum(5000), 1);
    rank.comm->set_timeout(std::chrono::milliseconds(300));
    const CollectiveCase c(sum(5000), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    if (rank.rank != 1) {
      rank.comm->run(b.call, rank.stream);
      std::string text;
      EXPECT_EQ(kind_of([&] { rank.comm->synchronize(rank.stream); }, &text), ErrorKind::kTimeout) << text;
      EXPECT_NE(text.find("rank 1 did not come to all_reduce f32[5000] sum"), std::string::npos) << text;
    }
    rank.barrier->arrive_and_wait();
    if (rank.rank == 1) {
      // Too late: the communicator is poisoned, and its kernels return at once.
      rank.comm->run(b.call, rank.stream);
      EXPECT_EQ(kind_of([&] { rank.comm->synchronize(rank.stream); }), ErrorKind::kTimeout);
    }
    EXPECT_EQ(kind_of([&] { rank.comm->run(b.call, rank.stream); }), ErrorKind::kTimeout);
  });
}

TEST_P(Faults, AbortEndsAKernelThatWaits) {
  GpuWorld world;
  world.options.settings().cuda_algorithm = GetParam();
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(70'000), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    if (rank.rank == 0) {
      rank.comm->run(b.call, rank.stream);
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
      rank.comm->abort("enough");
      std::string text;
      EXPECT_EQ(kind_of([&] { rank.comm->synchronize(rank.stream); }, &text), ErrorKind::kAborted);
      EXPECT_NE(text.find("enough"), std::string::npos) << text;
    }
    rank.barrier->arrive_and_wait();
    if (rank.rank == 1) {
      rank.comm->run(b.call, rank.stream);
      EXPECT_EQ(kind_of([&] { rank.comm->synchronize(rank.stream); }), ErrorKind::kPeerLost);
    }
  });
}

// A device's queue holds some 1,000 launches. Behind a kernel that waits for a peer it fills up, and the next launch
// blocks, with the communicator's lock held: abort(), failure() and flight_record() need no lock that it holds.
TEST_P(Faults, AbortAndRecordsDoNotWaitForAFullQueue) {
  GpuWorld world;
  world.options.settings().cuda_algorithm = GetParam();
  world.options.timeout = std::chrono::seconds(100);
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(5000), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    if (rank.rank == 0) {
      std::atomic<int> issued{0};
      std::thread issuer([&] {
        try {
          for (int i = 0; i < 20'000; ++i) {
            rank.comm->run(b.call, rank.stream);
            ++issued;
          }
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kAborted) << error.what();
        }
      });
      // Full: for a second, no call has come further.
      for (int before = -1; before != issued.load();) {
        before = issued.load();
        std::this_thread::sleep_for(std::chrono::seconds(1));
      }
      EXPECT_LT(issued.load(), 20'000);
      const auto start = std::chrono::steady_clock::now();
      EXPECT_FALSE(rank.comm->failure().has_value());
      EXPECT_NE(rank.comm->flight_record().find("all_reduce"), std::string::npos);
      EXPECT_GT(rank.comm->metrics().rows.size(), 0u);
      rank.comm->abort("enough");
      issuer.join();
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
      EXPECT_EQ(kind_of([&] { rank.comm->synchronize(rank.stream); }), ErrorKind::kAborted);
    }
    rank.barrier->arrive_and_wait();
  });
}

TEST_P(Faults, OtherCallsAreNamed) {
  struct Pair {
    CaseShape a, b;
  };
  CaseShape product = sum(100), gather = sum(100), wide = sum(100);
  product.op = ReduceOp::kProduct;
  gather.collective = Collective::kAllGather;
  wide.dtype = DataType::kFloat64;
  for (const Pair& pair : {Pair{sum(100), sum(101)}, Pair{sum(100), sum(300'000)}, Pair{sum(100), product},
                           Pair{sum(100), gather}, Pair{sum(100), wide}}) {
    GpuWorld world;
    world.options.settings().cuda_algorithm = GetParam();
    run_gpu_ranks(world, [&](Rank& rank) {
      const CollectiveCase c(rank.rank == 0 ? pair.a : pair.b, rank.size, 2);
      const Buffers b = prepare(rank, c, rank.stream);
      rank.comm->run(b.call, rank.stream);
      std::string text;
      EXPECT_EQ(kind_of([&] { rank.comm->synchronize(rank.stream); }, &text), ErrorKind::kMismatch) << text;
      EXPECT_NE(text.find("the ranks make different calls"), std::string::npos) << text;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, Faults,
                         testing::Values("", "ll_one_shot", "ll128_one_shot", "ll128_two_shot", "bulk_two_shot"),
                         [](const auto& which) { return which.param.empty() ? std::string("chosen") : which.param; });

TEST(Overlap, IsFound) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(1000), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    const auto captured = [&] {
      return capture(
          rank.stream, [&] { rank.comm->run(b.call, rank.stream); }, Order::kLost);
    };
    const cudaGraphExec_t first = captured();
    expect_overlap_found(rank, first, captured());
  });
}

TEST(Refusals, NineRanksAreTooMany) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int r = 0; r < 9; ++r) {
    threads.emplace_back([&, r] {
      CudaOptions options;
      options.timeout = std::chrono::seconds(20);
      options.device = r % device_count();
      std::string text;
      EXPECT_EQ(kind_of([&] { CudaCommunicator::create(store, "nine", r, 9, options); }, &text),
                ErrorKind::kUnsupported);
      EXPECT_NE(text.find("at most 8 ranks, not 9"), std::string::npos) << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Refusals, AreErrorsBeforeAnythingIsSent) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(10), rank.size, 1);
    Buffers b = prepare(rank, c, rank.stream);
    Call bad = b.call;
    bad.dtype = DataType::kInt32;
    bad.op = ReduceOp::kPremulSum;
    EXPECT_EQ(kind_of([&] { rank.comm->run(bad, rank.stream); }), ErrorKind::kInvalidArgument);
    EXPECT_EQ(kind_of([&] {
                rank.comm->exchange({{true, b.input, 4, rank.rank, 0}}, rank.stream);
              }),
              ErrorKind::kInvalidArgument);
    rank.comm->run(b.call, rank.stream);
    rank.comm->synchronize(rank.stream);
    verify(rank, c, b, "after refusals");
  });
}

}  // namespace
}  // namespace tutti::cuda::test
