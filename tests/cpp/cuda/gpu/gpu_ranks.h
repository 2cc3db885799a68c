// Ranks as threads, each with a communicator, a stream and an arena of device memory; on as many GPUs as there are, so
// that all of it runs on one GPU too.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cctype>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "communicator/device_entry.h"
#include "cuda/collective_case.h"
#include "device/cuda/cuda_reporter.h"
#include "tutti/cuda/communicator.h"

namespace tutti::cuda::test {

#define TUTTI_CUDA_OK(call)                                                             \
  do {                                                                                  \
    const cudaError_t error_ = (call);                                                  \
    if (error_ != cudaSuccess) {                                                        \
      throw std::runtime_error(std::string(#call) + ": " + cudaGetErrorString(error_)); \
    }                                                                                   \
  } while (false)

// Without asking CUDA.
inline int gpus_here() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev")) {
    const std::string name = entry.path().filename();
    count += name.starts_with("nvidia") && name.size() > 6 && std::isdigit(static_cast<unsigned char>(name[6])) != 0;
  }
  return count;
}

inline int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

struct Rank {
  int rank = 0;
  int size = 1;
  int device = 0;
  std::shared_ptr<CudaCommunicator> comm;
  cudaStream_t stream = nullptr, other_stream = nullptr;
  std::byte* memory = nullptr;
  std::size_t memory_bytes = 0, used = 0;
  std::barrier<>* barrier = nullptr;

  // From the arena: freeing device memory waits for the whole device, kernels of other ranks that wait for this one
  // included. 256-byte aligned, then `shift` bytes on.
  std::byte* allocate(std::size_t bytes, std::size_t shift = 0) {
    const std::size_t at = used;
    used += (bytes + shift + 511) / 256 * 256;
    if (used > memory_bytes) throw std::runtime_error("the test's arena is too small");
    return memory + at + shift;
  }
  void upload(std::byte* to, const std::vector<std::byte>& from, cudaStream_t on) const {
    if (!from.empty()) TUTTI_CUDA_OK(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, on));
  }
  std::vector<std::byte> download(const std::byte* from, std::size_t bytes) const {
    std::vector<std::byte> to(bytes);
    if (bytes > 0) {
      TUTTI_CUDA_OK(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyDeviceToHost, stream));
      TUTTI_CUDA_OK(cudaStreamSynchronize(stream));
    }
    return to;
  }
};

struct GpuWorld {
  int size = 2;
  CudaOptions options = [] {
    CudaOptions o;
    o.timeout = std::chrono::seconds(10);
    return o;
  }();
  std::size_t memory_bytes = std::size_t{64} << 20;
  std::uint64_t first_sequence = 0;  // where the device begins to count
};

// Runs `body` on every rank; fails the test with what a rank throws. A rank that throws aborts, so that others end.
inline void run_gpu_ranks(const GpuWorld& world, const std::function<void(Rank&)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  dynamic_cast<CudaReporter&>(device_of_kind("cuda")).begin_at(world.first_sequence);
  std::barrier<> barrier(world.size);
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<std::size_t>(world.size));
  const int devices = device_count();
  for (int r = 0; r < world.size; ++r) {
    threads.emplace_back([&, r] {
      Rank rank;
      bool arrived = false;
      try {
        rank.rank = r;
        rank.size = world.size;
        rank.device = r % devices;
        rank.barrier = &barrier;
        TUTTI_CUDA_OK(cudaSetDevice(rank.device));
        TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
        TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&rank.other_stream, cudaStreamNonBlocking));
        rank.memory_bytes = world.memory_bytes;
        TUTTI_CUDA_OK(cudaMalloc(&rank.memory, rank.memory_bytes));
        CudaOptions options = world.options;
        options.device = rank.device;
        rank.comm = CudaCommunicator::create(store, "test", r, world.size, options);
        body(rank);
        // A body that an assertion has left meets its peers at no barrier any more.
        if (testing::Test::HasFatalFailure()) throw std::runtime_error("an assertion failed");
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
        if (rank.comm != nullptr) rank.comm->abort("the test failed on rank " + std::to_string(r));
        barrier.arrive_and_drop();
        arrived = true;
      }
      if (rank.stream != nullptr) static_cast<void>(cudaStreamSynchronize(rank.stream));
      if (rank.other_stream != nullptr) static_cast<void>(cudaStreamSynchronize(rank.other_stream));
      if (!arrived) barrier.arrive_and_wait();  // nothing is freed while a peer's kernel may run
      rank.comm.reset();
      static_cast<void>(cudaFree(rank.memory));
      static_cast<void>(cudaStreamDestroy(rank.stream));
      static_cast<void>(cudaStreamDestroy(rank.other_stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < world.size; ++r) EXPECT_EQ(errors[static_cast<std::size_t>(r)], "") << "on rank " << r;
}

// Whether replays of a graph and eager calls stay in order.
enum class Order { kKept, kLost };

// What puts replays and eager calls of a communicator in order: its events' nodes.
inline void lose_order(cudaGraph_t graph) {
  std::size_t count = 0;
  TUTTI_CUDA_OK(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  TUTTI_CUDA_OK(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
    TUTTI_CUDA_OK(cudaGraphNodeGetType(node, &type));
    if (type == cudaGraphNodeTypeWaitEvent || type == cudaGraphNodeTypeEventRecord) {
      TUTTI_CUDA_OK(cudaGraphDestroyNode(node));
    }
  }
}

// What `body()` puts on the stream, as a graph.
inline cudaGraphExec_t capture(cudaStream_t stream, const std::function<void()>& body, Order order = Order::kKept) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  TUTTI_CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  body();
  TUTTI_CUDA_OK(cudaStreamEndCapture(stream, &graph));
  if (order == Order::kLost) lose_order(graph);
  TUTTI_CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  TUTTI_CUDA_OK(cudaGraphDestroy(graph));
  return executable;
}

// Before a first launch that meets other ranks.
inline void make_ready(Rank& rank, cudaGraphExec_t graph) {
  TUTTI_CUDA_OK(cudaGraphUpload(graph, rank.stream));
  TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
  rank.barrier->arrive_and_wait();
}

// Both at once on rank 0 alone: their kernels find each other. Since the others never come, it would be a timeout
// without that check. Destroys the graphs.
inline void expect_overlap_found(Rank& rank, cudaGraphExec_t first, cudaGraphExec_t second) {
  TUTTI_CUDA_OK(cudaGraphUpload(second, rank.stream));
  make_ready(rank, first);
  if (rank.rank == 0) {
    rank.comm->set_timeout(std::chrono::seconds(2));
    TUTTI_CUDA_OK(cudaGraphLaunch(first, rank.stream));
    TUTTI_CUDA_OK(cudaGraphLaunch(second, rank.other_stream));
    static_cast<void>(cudaStreamSynchronize(rank.stream));
    static_cast<void>(cudaStreamSynchronize(rank.other_stream));
    const auto failure = rank.comm->failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->kind(), ErrorKind::kInvalidArgument) << failure->what();
  }
  rank.barrier->arrive_and_wait();
  TUTTI_CUDA_OK(cudaGraphExecDestroy(first));
  TUTTI_CUDA_OK(cudaGraphExecDestroy(second));
}

// Where one case's buffers lie on a rank.
struct Buffers {
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  Call call;
  std::byte* factor = nullptr;  // of a shape with device_factor
};

// Uploads the input, poisons the output.
inline Buffers prepare(Rank& rank, const CollectiveCase& c, cudaStream_t stream) {
  const CaseShape& s = c.shape();
  const std::size_t shift = s.shift * size_of(s.dtype);
  Buffers b;
  b.output = rank.allocate(std::max(c.output_bytes(), c.input_bytes()), shift + s.output_shift * size_of(s.dtype));
  const bool shared = s.in_place && s.collective != Collective::kAllToAll;
  b.input = shared ? b.output : rank.allocate(c.input_bytes(), shift);
  if (shared) {
    (c.many_in() ? b.output : b.input) += c.in_place_offset(rank.rank);
  } else if (c.output_bytes() > 0) {
    TUTTI_CUDA_OK(cudaMemsetAsync(b.output, 0xa5, c.output_bytes(), stream));
  }
  rank.upload(b.input, c.input(rank.rank), stream);
  b.call = c.call(b.input, b.output);
  if (s.device_factor) {
    b.factor = rank.allocate(sizeof(double));
    rank.upload(b.factor, stored_factor(s), stream);
    b.call.device_factor = b.factor;
    b.call.factor = -1.0;  // nobody's
  }
  return b;
}

// Throws with the first byte that differs.
inline void verify(const Rank& rank, const CollectiveCase& c, const Buffers& b, const std::string& what) {
  const std::vector<std::byte> want = c.expected(rank.rank);
  const std::vector<std::byte> got = rank.download(b.output, want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] != got[i]) {
      throw std::runtime_error(what + " " + describe(c.shape(), rank.size) + ": byte " + std::to_string(i) + " of " +
                               std::to_string(want.size()) + " is " + std::to_string(static_cast<int>(got[i])) +
                               ", not " + std::to_string(static_cast<int>(want[i])));
    }
  }
}

inline Buffers run_and_verify(Rank& rank, const CaseShape& shape, std::uint64_t seed) {
  rank.used = 0;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.stream);
  rank.comm->run(b.call, rank.stream);
  rank.comm->synchronize(rank.stream);
  verify(rank, c, b, rank.comm->explain(b.call));
  return b;
}

}  // namespace tutti::cuda::test
