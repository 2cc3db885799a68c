// Threads that are not the ranks' own: with another current device, or beside one that captures.
#include <atomic>
#include <chrono>
#include <thread>

#include "cuda/gpu/gpu_ranks.h"

namespace tutti::cuda::test {
namespace {

constexpr std::size_t kMB = std::size_t{1} << 20;

// The handle of a default stream, null, is that of the current device: who waits for a call there, or lets go of its
// communicator, must mean the communicator's.
TEST(Threads, OneOfAnotherDeviceWaitsForCalls) {
  if (device_count() < 2) GTEST_SKIP() << "needs two GPUs";
  GpuWorld world;
  world.options.lasting_streams = true;
  run_gpu_ranks(world, [&](Rank& rank) {
    const std::size_t bytes = 4 * kMB;
    std::byte* const buffer = rank.allocate(bytes);
    const auto exchange = [&] {
      rank.comm->exchange({{rank.rank == 0, buffer, bytes, 1 - rank.rank, 0}}, /*stream=*/nullptr);
    };
    for (const bool finishes : {true, false}) {
      if (rank.rank == 0) {
        exchange();
        std::atomic<bool> over{false};
        std::thread other([&] {
          EXPECT_EQ(cudaSetDevice(1 - rank.device), cudaSuccess);
          finishes ? rank.comm->finish() : rank.comm->synchronize(nullptr);
          over = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        EXPECT_FALSE(over) << "the peer has not come yet";
        rank.barrier->arrive_and_wait();
        other.join();
      } else {
        rank.barrier->arrive_and_wait();
        exchange();
      }
      TUTTI_CUDA_OK(cudaStreamSynchronize(nullptr));
      rank.barrier->arrive_and_wait();
    }
  });
}

// As torch captures, and as whatever else a program does on other threads meanwhile.
TEST(Threads, OneThatCapturesIsLeftAlone) {
  GpuWorld world;
  const auto store = std::make_shared<MemoryStore>();
  run_gpu_ranks(world, [&](Rank& rank) {
    std::byte* const captured = rank.allocate(kMB);
    std::byte* const copied = rank.allocate(kMB);
    const std::shared_ptr<std::byte> pool = make_cuda_memory(kMB, rank.device);
    TUTTI_CUDA_OK(cudaDeviceSynchronize());
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.other_stream, cudaStreamCaptureModeGlobal));
    rank.barrier->arrive_and_wait();
    std::string error;
    std::thread other([&] {
      try {
        TUTTI_CUDA_OK(cudaSetDevice(rank.device));
        CudaOptions options = world.options;
        options.device = rank.device;
        auto comm = CudaCommunicator::create(store, "beside", rank.rank, rank.size, options);
        auto memory = comm->allocate("memory", kMB);
        static_cast<void>(memory->port_memory());
        if (comm->transport().starts_with("peer memory")) {
          comm->unregister_memory(comm->register_memory({{pool.get(), kMB}}));
        }
        std::vector<std::byte> host(kMB);
        copy_cuda_memory(copied, host.data(), host.size());
        static_cast<void>(comm->metrics());
        memory.reset();
        comm.reset();
      } catch (const std::exception& e) {
        error = e.what();
      }
    });
    other.join();
    EXPECT_EQ(error, "");
    rank.barrier->arrive_and_wait();
    EXPECT_EQ(cudaMemsetAsync(captured, 1, kMB, rank.other_stream), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(rank.other_stream, &graph), cudaSuccess);
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
    rank.barrier->arrive_and_wait();
  });
}

// The stream of the last call is captured for something else: a call on another stream becomes no part of that graph.
TEST(Threads, ACallBesideACaptureOfTheLastStreamIsRefused) {
  GpuWorld world;
  world.options.lasting_streams = true;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(CaseShape{}, rank.size, 1);
    const Buffers buffers = prepare(rank, c, rank.stream);
    rank.comm->run(buffers.call, rank.stream);
    rank.comm->synchronize(rank.stream);
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeRelaxed));
    EXPECT_THROW(rank.comm->run(buffers.call, rank.other_stream), Error);
    EXPECT_EQ(cudaMemsetAsync(rank.allocate(1024), 1, 1024, rank.stream), cudaSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(rank.stream, &graph), cudaSuccess);
    if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
    rank.barrier->arrive_and_wait();
    rank.comm->run(buffers.call, rank.other_stream);
    rank.comm->synchronize(rank.other_stream);
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
