// Kernels of a user's own over MemoryChannel: what include/tutti/device/device.cuh promises.
#include "cuda/gpu/gpu_ranks.h"
#include "tutti/device/device.cuh"

namespace tutti::cuda::test {
namespace {

constexpr std::size_t kBytes = 40'000;

// Each rank of a pair sends its first kBytes to the other's second kBytes, `rounds` times, with changing data.
__global__ void ping(device::MemoryChannel channel, int rounds, int* wrong) {
  const device::BlockTeam team;
  const int me = channel.control.rank;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = threadIdx.x; i < kBytes; i += blockDim.x) {
      channel.local[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(round * 3 + me));
    }
    __syncthreads();
    channel.put_with_signal(team, kBytes, 0, kBytes);
    if (!channel.wait(team)) *wrong = 1 << 20;
    for (std::size_t i = threadIdx.x; i < kBytes; i += blockDim.x) {
      if (channel.local[kBytes + i] != static_cast<std::byte>(i * 7 + static_cast<std::size_t>(round * 3 + 1 - me))) {
        atomicAdd(wrong, 1);
      }
    }
    // The peer may send again.
    channel.signal(team);
    if (!channel.wait(team)) *wrong = 1 << 20;
  }
}

__global__ void packets(device::MemoryChannel channel, std::uint32_t flag, int* wrong) {
  const device::BlockTeam team;
  constexpr std::size_t kMessage = 1000;
  const int me = channel.control.rank;
  for (std::size_t i = threadIdx.x; i < kMessage; i += blockDim.x) {
    channel.local[i] = static_cast<std::byte>(i * 5 + static_cast<std::size_t>(me));
  }
  __syncthreads();
  channel.put_packets(team, 4096, 0, kMessage, flag);
  if (!channel.read_packets(team, 16384, 4096, kMessage, flag)) *wrong = 1 << 20;
  __syncthreads();
  for (std::size_t i = threadIdx.x; i < kMessage; i += blockDim.x) {
    if (channel.local[16384 + i] != static_cast<std::byte>(i * 5 + static_cast<std::size_t>(1 - me))) {
      atomicAdd(wrong, 1);
    }
  }
}

__global__ void sum_over_switch(device::SwitchChannel channel, std::size_t vectors) {
  for (std::size_t i = threadIdx.x; i < vectors; i += blockDim.x) {
    channel.broadcast(vectors * 16 + i * 16, channel.reduce_f32(i * 16));
  }
}

TEST(Channels, PutSignalWaitAndPackets) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const auto memory = rank.comm->allocate("channel", 1 << 20);
    const device::MemoryChannel channel = memory->channel(1 - rank.rank);
    int* wrong = reinterpret_cast<int*>(rank.allocate(sizeof(int)));
    TUTTI_CUDA_OK(cudaMemsetAsync(wrong, 0, sizeof(int), rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    cudaFuncAttributes loaded{};
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, ping));
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, packets));
    rank.barrier->arrive_and_wait();
    ping<<<1, 256, 0, rank.stream>>>(channel, 30, wrong);
    packets<<<1, 256, 0, rank.stream>>>(memory->channel(1 - rank.rank, 5), 1, wrong);
    rank.comm->synchronize(rank.stream);
    const std::vector<std::byte> seen = rank.download(reinterpret_cast<std::byte*>(wrong), sizeof(int));
    EXPECT_EQ(seen, std::vector<std::byte>(sizeof(int)));
    EXPECT_THROW(static_cast<void>(memory->channel(rank.rank)), Error);
    rank.barrier->arrive_and_wait();
  });
}

TEST(Channels, SoftwareMulticast) {
  GpuWorld world;
  world.size = 3;
  run_gpu_ranks(world, [&](Rank& rank) {
    constexpr std::size_t kVectors = 100;
    const auto memory = rank.comm->allocate("switch", 1 << 20);
    std::vector<float> mine(kVectors * 4);
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = static_cast<float>(i) + static_cast<float>(rank.rank) * 1000;
    TUTTI_CUDA_OK(cudaMemcpy(memory->data(rank.rank), mine.data(), mine.size() * 4, cudaMemcpyHostToDevice));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 1) {
      device::SwitchChannel channel;
      channel.size = rank.size;
      for (int r = 0; r < rank.size; ++r) channel.memory[r] = memory->data(r);
      sum_over_switch<<<1, 128, 0, rank.stream>>>(channel, kVectors);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    }
    rank.barrier->arrive_and_wait();
    std::vector<float> got(mine.size());
    TUTTI_CUDA_OK(
        cudaMemcpy(got.data(), memory->data(rank.rank) + kVectors * 16, got.size() * 4, cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<float>(i) * 3 + 3000);
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
