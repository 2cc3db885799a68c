// Ports on GPUs: kernels ask, the proxy and the copy engines carry out. What cuda_ports_test cannot show: pinned memory
// across the bus, copies and writes in stream order, graphs.
#include <array>

#include "cuda/gpu/gpu_ranks.h"
#include "tutti/device/device.cuh"

namespace tutti::cuda::test {
namespace {

constexpr int kBlocks = 4;
constexpr int kFailed = 1 << 20;

struct Ports {
  device::PortChannel of_block[kBlocks];
};

__device__ std::byte value(int from, int block, int round, std::size_t i) {
  return static_cast<std::byte>(i * 7 + static_cast<std::size_t>(from * 31 + block * 5 + round * 3));
}

// Block b has `bytes` of source and `bytes` of inbox, one after the other, at `shift` + b * 2 * bytes. It sends its
// source `rounds` times, overwrites it as soon as it is flushed, and checks what has come from the other rank.
__global__ void exchange_by_ports(Ports ports, std::byte* memory, std::size_t shift, std::size_t bytes, int first_round,
                                  int rounds, int* wrong) {
  const device::BlockTeam team;
  const int b = static_cast<int>(blockIdx.x);
  const device::PortChannel& port = ports.of_block[b];
  const int me = port.control.rank;
  const std::size_t source = shift + static_cast<std::size_t>(b) * 2 * bytes, inbox = source + bytes;
  for (int round = first_round; round < first_round + rounds; ++round) {
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) memory[source + i] = value(me, b, round, i);
    bool ok = true;
    if (round % 2 == 0) {
      ok = port.put_with_signal_and_flush(team, inbox, source, bytes);
    } else {
      const std::size_t half = bytes / 2;
      ok = port.put(team, inbox, source, half) && ok;
      ok = port.put(team, inbox + half, source + half, bytes - half) && ok;
      ok = port.signal(team) && ok;
      ok = port.flush(team) && ok;
    }
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) memory[source + i] = std::byte{0xee};
    ok = port.wait(team) && ok;
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) {
      if (memory[inbox + i] != value(1 - me, b, round, i)) atomicAdd(wrong, 1);
    }
    // The peer may send the next round.
    ok = port.signal(team) && ok;
    ok = port.wait(team) && ok;
    if (__syncthreads_or(ok ? 0 : 1)) {
      if (threadIdx.x == 0) atomicAdd(wrong, kFailed);
      return;
    }
  }
}

// All blocks put `each` pieces of 64 bytes over one port: more requests than the ring holds.
__global__ void scatter_over_one_port(device::PortChannel port, int each, bool flush, int* wrong) {
  const device::BlockTeam team;
  bool ok = true;
  for (int n = 0; n < each; ++n) {
    const std::size_t at =
        (static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(each) + static_cast<std::size_t>(n)) * 64;
    ok = port.put_with_signal(team, at, at, 64) && ok;
  }
  if (flush) ok = port.flush(team) && ok;
  if (!ok) atomicAdd(wrong, kFailed);
}
__global__ void wait_for(device::PortChannel port, int signals, int* wrong) {
  const device::BlockTeam team;
  bool ok = true;
  for (int n = 0; n < signals; ++n) ok = port.wait(team) && ok;
  if (!ok || (threadIdx.x == 0 && port.poll())) atomicAdd(wrong, kFailed);
}

// Asks until a request finds no room and the wait for it ends.
__global__ void ask_until_refused(device::PortChannel port, int* refused) {
  const device::BlockTeam team;
  for (int n = 0; n < (1 << 24); ++n) {
    const bool ok = port.put(team, 0, 64, 64);
    if (__syncthreads_or(ok ? 0 : 1)) {
      if (threadIdx.x == 0) *refused = 1;
      return;
    }
  }
}
__global__ void put_once(device::PortChannel port, std::size_t to, std::size_t bytes, int* ended) {
  const bool ok = port.put_with_signal_and_flush(device::BlockTeam{}, to, 0, bytes);
  if (threadIdx.x == 0) *ended = ok ? 2 : 1;
}

// `rounds` times: a long put, and a short one over its end, which would be the long one's if the short one overtook it.
__global__ void put_over(device::PortChannel port, std::size_t bytes, int rounds, int* wrong) {
  const device::BlockTeam team;
  bool ok = true;
  for (int round = 0; round < rounds; ++round) {
    const std::size_t end = bytes * static_cast<std::size_t>(round + 1);
    ok = port.put(team, end - bytes, 0, bytes) && ok;
    ok = port.put(team, end - 64, bytes, 64) && ok;
    ok = port.signal(team) && ok;
  }
  ok = port.flush(team) && ok;
  if (!ok) atomicAdd(wrong, kFailed);
}
// Looks behind each signal at what came before it, and at nothing else.
__global__ void expect_over(device::PortChannel port, const std::byte* memory, std::size_t bytes, int rounds,
                            int* wrong) {
  const device::BlockTeam team;
  for (int round = 0; round < rounds; ++round) {
    if (__syncthreads_or(port.wait(team) ? 0 : 1)) {
      if (threadIdx.x == 0) atomicAdd(wrong, kFailed);
      return;
    }
    const std::byte* put = memory + bytes * static_cast<std::size_t>(round);
    for (std::size_t i = threadIdx.x; i < bytes; i += blockDim.x) {
      if (put[i] != (i + 64 < bytes ? std::byte{1} : std::byte{2})) atomicAdd(wrong, 1);
    }
  }
}

// Kernels are loaded before any of them waits.
void load_all() {
  cudaFuncAttributes loaded{};
  for (const void* kernel :
       {reinterpret_cast<const void*>(&exchange_by_ports), reinterpret_cast<const void*>(&scatter_over_one_port),
        reinterpret_cast<const void*>(&wait_for), reinterpret_cast<const void*>(&ask_until_refused),
        reinterpret_cast<const void*>(&put_once), reinterpret_cast<const void*>(&put_over),
        reinterpret_cast<const void*>(&expect_over)}) {
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, kernel));
  }
}

Ports ports_of(CudaMemory& memory, int peer) {
  Ports ports;
  for (int b = 0; b < kBlocks; ++b) ports.of_block[b] = memory.port(peer, b);
  return ports;
}

// A zeroed int on the device.
int* make_counter(Rank& rank) {
  int* counter = reinterpret_cast<int*>(rank.allocate(sizeof(int)));
  TUTTI_CUDA_OK(cudaMemsetAsync(counter, 0, sizeof(int), rank.stream));
  TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
  return counter;
}
int read(const Rank& rank, const int* counter) {
  int value_now = 0;
  const std::vector<std::byte> bytes = rank.download(reinterpret_cast<const std::byte*>(counter), sizeof(int));
  std::memcpy(&value_now, bytes.data(), sizeof(int));
  return value_now;
}

TEST(Ports, PutSignalFlushAndWait) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    const auto memory = rank.comm->allocate("ports", 32 << 20);
    const Ports ports = ports_of(*memory, 1 - rank.rank);
    int* wrong = make_counter(rank);
    load_all();
    rank.barrier->arrive_and_wait();
    // Odd sizes and offsets, several megabytes, and many rounds: more than 2000 requests.
    for (const auto& [shift, bytes, rounds] :
         {std::array<std::size_t, 3>{0, 4096, 100}, {3, 1001, 100}, {1, 3'000'001, 3}}) {
      exchange_by_ports<<<kBlocks, 256, 0, rank.stream>>>(ports, memory->data(rank.rank), shift, bytes, 0,
                                                          static_cast<int>(rounds), wrong);
      rank.comm->synchronize(rank.stream);
      ASSERT_EQ(read(rank, wrong), 0) << bytes << " bytes on rank " << rank.rank << " (" << kFailed
                                      << ": a wait ended)";
    }
    EXPECT_THROW(static_cast<void>(memory->port(rank.rank)), Error);
    EXPECT_THROW(static_cast<void>(memory->port(1 - rank.rank, kCudaPorts)), Error);
    rank.barrier->arrive_and_wait();
  });
}

// To one peer all happens in the order of the ring: puts over each other, and a signal behind both.
TEST(Ports, RequestsToAPeerKeepTheirOrder) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    constexpr std::size_t kBytes = std::size_t{1} << 20;
    constexpr int kRounds = 30;
    const auto memory = rank.comm->allocate("ports", kRounds * kBytes);
    const device::PortChannel port = memory->port(1 - rank.rank);
    int* wrong = make_counter(rank);
    load_all();
    std::byte* const mine = memory->data(rank.rank);
    TUTTI_CUDA_OK(cudaMemsetAsync(mine, 0, kRounds * kBytes, rank.stream));
    if (rank.rank == 0) {
      TUTTI_CUDA_OK(cudaMemsetAsync(mine, 1, kBytes, rank.stream));
      TUTTI_CUDA_OK(cudaMemsetAsync(mine + kBytes, 2, 64, rank.stream));
    }
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      put_over<<<1, 32, 0, rank.stream>>>(port, kBytes, kRounds, wrong);
    } else {
      expect_over<<<1, 256, 0, rank.stream>>>(port, mine, kBytes, kRounds, wrong);
    }
    rank.comm->synchronize(rank.stream);
    EXPECT_EQ(read(rank, wrong), 0) << "on rank " << rank.rank;
    rank.barrier->arrive_and_wait();
  });
}

TEST(Ports, ManyBlocksWrapTheRing) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    constexpr int kWriters = 8, kEach = 150;
    constexpr std::size_t kBytes = std::size_t{kWriters} * kEach * 64;
    const auto memory = rank.comm->allocate("ports", kBytes);
    const device::PortChannel port = memory->port(1 - rank.rank);
    int* wrong = make_counter(rank);
    load_all();
    const std::byte fill = rank.rank == 0 ? std::byte{0x3c} : std::byte{0};
    TUTTI_CUDA_OK(cudaMemsetAsync(memory->data(rank.rank), static_cast<int>(fill), kBytes, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      scatter_over_one_port<<<kWriters, 64, 0, rank.stream>>>(port, kEach, true, wrong);
    } else {
      wait_for<<<1, 32, 0, rank.stream>>>(port, kWriters * kEach, wrong);
    }
    rank.comm->synchronize(rank.stream);
    EXPECT_EQ(read(rank, wrong), 0);
    EXPECT_EQ(rank.download(memory->data(rank.rank), kBytes), std::vector<std::byte>(kBytes, std::byte{0x3c}));
    rank.barrier->arrive_and_wait();
  });
}

TEST(Ports, ReplayInGraphs) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    const auto memory = rank.comm->allocate("ports", 1 << 20);
    const Ports ports = ports_of(*memory, 1 - rank.rank);
    int* wrong = make_counter(rank);
    load_all();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    exchange_by_ports<<<kBlocks, 128, 0, rank.stream>>>(ports, memory->data(rank.rank), 0, 5000, 2, 3, wrong);
    TUTTI_CUDA_OK(cudaStreamEndCapture(rank.stream, &graph));
    TUTTI_CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    TUTTI_CUDA_OK(cudaGraphDestroy(graph));
    TUTTI_CUDA_OK(cudaGraphUpload(executable, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    for (int replay = 0; replay < 30; ++replay) {
      TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
      // An eager kernel between replays counts on.
      exchange_by_ports<<<kBlocks, 128, 0, rank.stream>>>(ports, memory->data(rank.rank), 0, 777, replay, 1, wrong);
    }
    rank.comm->synchronize(rank.stream);
    EXPECT_EQ(read(rank, wrong), 0);
    TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
    rank.barrier->arrive_and_wait();
  });
}

// From registered memory, which lies elsewhere on each rank, into memory of allocate().
TEST(Ports, RegisteredMemory) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    constexpr std::size_t kBytes = 100'000;
    const auto memory = rank.comm->allocate("ports", kBytes);
    std::byte* const mine = rank.memory + (std::size_t{2} << 20) + 512 * static_cast<std::size_t>(rank.rank);
    auto regions = rank.comm->register_memory({{mine, kBytes}});
    device::PortChannel port = memory->port(1 - rank.rank);
    port.from_memory = rank.comm->port_memory(*regions[0]);
    EXPECT_THROW(static_cast<void>(rank.comm->port_memory(*memory)), Error) << "it has a number of its own";
    int* ended = make_counter(rank);
    int* wrong = make_counter(rank);
    load_all();
    TUTTI_CUDA_OK(cudaMemsetAsync(mine, 0x11 * (rank.rank + 1), kBytes, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    put_once<<<1, 32, 0, rank.stream>>>(port, 0, kBytes, ended);
    wait_for<<<1, 32, 0, rank.stream>>>(port, 1, wrong);
    rank.comm->synchronize(rank.stream);
    EXPECT_EQ(read(rank, ended), 2);
    EXPECT_EQ(read(rank, wrong), 0);
    EXPECT_EQ(rank.download(memory->data(rank.rank), kBytes),
              std::vector<std::byte>(kBytes, static_cast<std::byte>(0x11 * (2 - rank.rank))));
    rank.comm->unregister_memory(std::move(regions));
    rank.barrier->arrive_and_wait();
  });
}

TEST(Ports, AbortEndsAWaitForRoomInTheRing) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    const auto memory = rank.comm->allocate("ports", 1 << 20);
    const device::PortChannel port = memory->port(1 - rank.rank);
    int* refused = make_counter(rank);
    load_all();
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      ask_until_refused<<<1, 32, 0, rank.stream>>>(port, refused);
      rank.comm->abort("enough");  // the proxy leaves, and nobody makes room
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      EXPECT_EQ(read(rank, refused), 1);
      const auto failure = rank.comm->failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->kind(), ErrorKind::kAborted) << failure->what();
    }
    rank.barrier->arrive_and_wait();
  });
}

TEST(Ports, ARequestOutOfBoundsIsAnError) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    const auto memory = rank.comm->allocate("ports", 1 << 20);
    const device::PortChannel port = memory->port(1 - rank.rank);
    int* ended = make_counter(rank);
    load_all();
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      put_once<<<1, 32, 0, rank.stream>>>(port, (1 << 20) - 8, 16, ended);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      EXPECT_EQ(read(rank, ended), 1) << "the flush was answered";
      const auto failure = rank.comm->failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(failure->what()).find("16 bytes to offset 1048568"), std::string::npos) << failure->what();
    }
    rank.barrier->arrive_and_wait();
  });
}

// What was asked for without a flush is carried out before the memory and the proxy go.
TEST(Ports, NothingIsLostAtTheEnd) {
  run_gpu_ranks(GpuWorld{}, [&](Rank& rank) {
    constexpr int kPieces = 100;
    auto memory = rank.comm->allocate("ports", std::size_t{kPieces} * 64);
    const device::PortChannel port = memory->port(1 - rank.rank);
    int* wrong = make_counter(rank);
    load_all();
    TUTTI_CUDA_OK(
        cudaMemsetAsync(memory->data(rank.rank), rank.rank == 0 ? 0x3c : 0, std::size_t{kPieces} * 64, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      scatter_over_one_port<<<1, 32, 0, rank.stream>>>(port, kPieces, false, wrong);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      memory.reset();
    } else {
      wait_for<<<1, 32, 0, rank.stream>>>(port, kPieces, wrong);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      EXPECT_EQ(rank.download(memory->data(1), std::size_t{kPieces} * 64),
                std::vector<std::byte>(std::size_t{kPieces} * 64, std::byte{0x3c}));
    }
    EXPECT_EQ(read(rank, wrong), 0);
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
