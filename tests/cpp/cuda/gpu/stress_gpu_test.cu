// Order bugs on the GPU: ten thousand random calls with payloads that are written and checked there, so that nothing
// pauses between them; and message passing over memory that the reader's L1 holds. scripts/test_gpu.sh runs this with
// the plug-in as it is and with the one that has random delays at the steps of the protocols.
#include <algorithm>
#include <random>

#include "cuda/gpu/gpu_ranks.h"
#include "cuda/stress_calls.h"
#include "tutti/device/device.cuh"

namespace tutti::cuda::test {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kMostElements = 1 << 18;  // of a block
constexpr std::uint32_t kPoison = 0xa5a5a5a5u;

// The first mistake on a rank.
struct Mistake {
  unsigned long long found = 0;  // elements that are wrong
  std::uint64_t index = 0;       // of the call
  std::uint64_t element = 0;
  std::uint32_t got = 0, want = 0;
};

__global__ void fill_kernel(StressCall c, int rank, int size, std::uint32_t* input, std::uint32_t* output) {
  const std::size_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  const bool gives = c.collective != Collective::kBroadcast || rank == c.root;
  for (std::size_t i = first; i < stress_inputs(c, size); i += stride) {
    input[i] = gives ? stress_value(c, rank, i) : kPoison;
  }
  if (c.in_place) return;
  for (std::size_t i = first; i < stress_outputs(c, size); i += stride) output[i] = kPoison;
}

__global__ void check_kernel(StressCall c, std::uint64_t index, int rank, int size, const std::uint32_t* output,
                             Mistake* mistake) {
  if (!stress_receives(c, rank)) return;
  const std::size_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  for (std::size_t i = first; i < stress_outputs(c, size); i += stride) {
    const std::uint32_t got = output[i], want = stress_expected(c, rank, size, i);
    if (got == want || atomicAdd(&mistake->found, 1ULL) != 0) continue;
    mistake->index = index;
    mistake->element = i;
    mistake->got = got;
    mistake->want = want;
  }
}

int grid_for(std::size_t elements) {
  return static_cast<int>(std::clamp<std::size_t>((elements + 4 * kThreads - 1) / (4 * kThreads), 1, 32));
}

// One rank's side: two streams, each with two sets of buffers in memory that all ranks map, and a graph.
class StressSide {
 public:
  StressSide(Rank& rank, const std::shared_ptr<CudaMemory>& memory)
      : rank_(rank), memory_(memory), half_(half_bytes(rank.size)) {
    mistake_ = reinterpret_cast<Mistake*>(rank.allocate(sizeof(Mistake)));
    TUTTI_CUDA_OK(cudaMemset(mistake_, 0, sizeof(Mistake)));
    for (cudaEvent_t* event : {&before_, &after_}) {
      TUTTI_CUDA_OK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
    // Loaded now: loading beside a kernel that waits for a peer would wait for that kernel.
    cudaFuncAttributes loaded{};
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, fill_kernel));
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, check_kernel));
    replayed_.count = 3000;
    cudaGraph_t graph = nullptr;
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    rank.comm->run(call_of(replayed_, buffer(kGraphBuffer), buffer(kGraphBuffer) + half_), rank.stream);
    TUTTI_CUDA_OK(cudaStreamEndCapture(rank.stream, &graph));
    TUTTI_CUDA_OK(cudaGraphInstantiate(&graph_, graph, 0));
    TUTTI_CUDA_OK(cudaGraphDestroy(graph));
    TUTTI_CUDA_OK(cudaGraphUpload(graph_, rank.stream));
    TUTTI_CUDA_OK(cudaDeviceSynchronize());
    rank.barrier->arrive_and_wait();
  }
  ~StressSide() {
    static_cast<void>(cudaGraphExecDestroy(graph_));
    static_cast<void>(cudaEventDestroy(before_));
    static_cast<void>(cudaEventDestroy(after_));
  }

  static constexpr std::size_t bytes(int size) { return (kGraphBuffer + 1) * 2 * half_bytes(size); }

  void issue(const StressCall& c, std::uint64_t index) {
    if (c.replay) return replay(c, index);
    cudaStream_t stream = c.stream == 0 ? rank_.stream : rank_.other_stream;
    std::byte* input = buffer(2 * c.stream + static_cast<int>(index % 2));
    std::byte* output = c.in_place ? input : input + half_;
    fill(c, input, output, stream);
    // Without copies where it is large enough.
    rank_.comm->run(call_of(c, input, output), stream);
    check(c, index, output, stream);
  }

  void finish(const std::vector<StressCall>& program) {
    rank_.comm->synchronize(rank_.other_stream);
    rank_.comm->synchronize(rank_.stream);
    Mistake seen;
    TUTTI_CUDA_OK(cudaMemcpyAsync(&seen, mistake_, sizeof(seen), cudaMemcpyDeviceToHost, rank_.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank_.stream));
    if (seen.found == 0) return;
    throw std::runtime_error(describe(program[seen.index], seen.index) + " by " +
                             rank_.comm->explain(call_of(program[seen.index], buffer(0), buffer(0))) + ": element " +
                             std::to_string(seen.element) + " is " + std::to_string(seen.got) + ", not " +
                             std::to_string(seen.want) + "; " + std::to_string(seen.found) + " elements are wrong");
  }

 private:
  static constexpr int kGraphBuffer = 4;
  // Of an input, or an output.
  static constexpr std::size_t half_bytes(int size) {
    return std::size_t{kMostElements} * static_cast<std::size_t>(size) * sizeof(std::uint32_t);
  }
  std::byte* buffer(int which) const { return memory_->data(rank_.rank) + static_cast<std::size_t>(which) * 2 * half_; }
  void fill(const StressCall& c, std::byte* input, std::byte* output, cudaStream_t stream) {
    const std::size_t most = std::max(stress_inputs(c, rank_.size), stress_outputs(c, rank_.size));
    fill_kernel<<<grid_for(most), kThreads, 0, stream>>>(
        c, rank_.rank, rank_.size, reinterpret_cast<std::uint32_t*>(input), reinterpret_cast<std::uint32_t*>(output));
    TUTTI_CUDA_OK(cudaGetLastError());
  }
  void check(const StressCall& c, std::uint64_t index, const std::byte* output, cudaStream_t stream) {
    check_kernel<<<grid_for(stress_outputs(c, rank_.size)), kThreads, 0, stream>>>(
        c, index, rank_.rank, rank_.size, reinterpret_cast<const std::uint32_t*>(output), mistake_);
    TUTTI_CUDA_OK(cudaGetLastError());
  }
  // The graph's call with the payload of this one. The caller orders replays and eager calls: by events.
  void replay(StressCall c, std::uint64_t index) {
    c.collective = replayed_.collective;
    c.count = replayed_.count;
    c.in_place = false;
    std::byte* input = buffer(kGraphBuffer);
    TUTTI_CUDA_OK(cudaEventRecord(before_, rank_.other_stream));
    TUTTI_CUDA_OK(cudaStreamWaitEvent(rank_.stream, before_, 0));
    fill(c, input, input + half_, rank_.stream);
    TUTTI_CUDA_OK(cudaGraphLaunch(graph_, rank_.stream));
    check(c, index, input + half_, rank_.stream);
    TUTTI_CUDA_OK(cudaEventRecord(after_, rank_.stream));
    TUTTI_CUDA_OK(cudaStreamWaitEvent(rank_.other_stream, after_, 0));
  }

  Rank& rank_;
  const std::shared_ptr<CudaMemory> memory_;
  const std::size_t half_;
  Mistake* mistake_ = nullptr;
  cudaEvent_t before_ = nullptr, after_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  StressCall replayed_;
};

void stress(int size, std::size_t calls, std::uint64_t first_sequence) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::vector<StressCall> program = stress_program(seed, calls, size, kMostElements, first_sequence);
  GpuWorld world;
  world.size = size;
  world.first_sequence = first_sequence;
  world.memory_bytes = 1 << 20;
  run_gpu_ranks(world, [&](Rank& rank) {
    const auto memory = rank.comm->allocate("stress", StressSide::bytes(size));
    StressSide side(rank, memory);
    for (std::size_t i = 0; i < program.size(); ++i) {
      side.issue(program[i], i);
      // Bounds what is queued: a rank thread that waits for room in a full queue holds up the others of its GPU.
      if (i % 128 != 127) continue;
      rank.comm->synchronize(rank.stream);
      rank.comm->synchronize(rank.other_stream);
    }
    side.finish(program);
    rank.barrier->arrive_and_wait();
  });
}

TEST(StressOnGpu, TenThousandCallsAcrossTheWrapOfTheSequence) { stress(2, 10'000, (std::uint64_t{1} << 32) - 50); }
TEST(StressOnGpu, AcrossTheWrapOfTheFlag) { stress(3, 2'000, device::kFlagPeriod - 50); }

constexpr int kWords = 4096;

// The reader has the words in its L1 before they are written, and must see the new ones after its wait: one thread
// acquires, a barrier of the block, all read.
__global__ void litmus_read(device::MemoryChannel channel, int rounds, unsigned long long* stale) {
  const device::BlockTeam team;
  const auto* words = reinterpret_cast<const std::uint32_t*>(channel.local);
  for (int round = 1; round <= rounds; ++round) {
    std::uint32_t warm = 0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = static_cast<int>(threadIdx.x); i < kWords; i += static_cast<int>(blockDim.x)) warm |= words[i];
    }
    if (warm == 0xffffffffu) *stale = 1ULL << 40;  // never: keeps the loads
    channel.signal(team);                          // the writer may begin
    if (!channel.wait(team)) {
      *stale = 1ULL << 41;
      return;
    }
    for (int i = static_cast<int>(threadIdx.x); i < kWords; i += static_cast<int>(blockDim.x)) {
      if (words[i] != static_cast<std::uint32_t>(round)) atomicAdd(stale, 1ULL);
    }
  }
}

__global__ void litmus_write(device::MemoryChannel channel, int rounds) {
  const device::BlockTeam team;
  auto* words = reinterpret_cast<std::uint32_t*>(channel.remote);
  for (int round = 1; round <= rounds; ++round) {
    if (!channel.wait(team)) return;
    for (int i = static_cast<int>(threadIdx.x); i < kWords; i += static_cast<int>(blockDim.x)) {
      words[i] = static_cast<std::uint32_t>(round);
    }
    channel.signal(team);
  }
}

TEST(Litmus, MessagePassingWithAWarmL1) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    constexpr int kRounds = 3000;
    const auto memory = rank.comm->allocate("litmus", kWords * 4);
    auto* stale = reinterpret_cast<unsigned long long*>(rank.allocate(sizeof(unsigned long long)));
    TUTTI_CUDA_OK(cudaMemsetAsync(stale, 0, sizeof(unsigned long long), rank.stream));
    cudaFuncAttributes loaded{};
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, litmus_read));
    TUTTI_CUDA_OK(cudaFuncGetAttributes(&loaded, litmus_write));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      litmus_read<<<1, 256, 0, rank.stream>>>(memory->channel(1), kRounds, stale);
    } else {
      litmus_write<<<1, 256, 0, rank.stream>>>(memory->channel(0), kRounds);
    }
    TUTTI_CUDA_OK(cudaGetLastError());
    rank.comm->synchronize(rank.stream);
    unsigned long long seen = 0;
    TUTTI_CUDA_OK(cudaMemcpyAsync(&seen, stale, sizeof(seen), cudaMemcpyDeviceToHost, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(seen, 0u) << "stale words on rank " << rank.rank;
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
