// Threads that are not the ranks' own: with another current device.
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

}  // namespace
}  // namespace tutti::cuda::test
