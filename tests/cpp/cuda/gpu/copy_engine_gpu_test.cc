// Collectives on copy engines: results, graphs, other calls between them, ends.
#include <map>

#include "cuda/gpu/gpu_ranks.h"

namespace tutti::cuda::test {
namespace {

constexpr std::size_t kOutputAt = std::size_t{1} << 20;

GpuWorld copy_world(int size) {
  GpuWorld world;
  world.size = size;
  world.options.settings().cuda_algorithm = "copy_engine";
  return world;
}

CaseShape shape_of(Collective collective, std::size_t count, int root = 0) {
  CaseShape shape;
  shape.collective = collective;
  shape.count = count;
  shape.root = root;
  return shape;
}

// The case's call in `memory`: the input at 0, the output at kOutputAt on all ranks.
Buffers place(const Rank& rank, const CollectiveCase& c, const CudaMemory& memory) {
  Buffers b;
  b.output = memory.data(rank.rank) + kOutputAt;
  b.input = memory.data(rank.rank);
  b.call = c.call(b.input, b.output);
  return b;
}
void fill_in(const Rank& rank, const CollectiveCase& c, const Buffers& b, cudaStream_t stream) {
  if (c.output_bytes() > 0) TUTTI_CUDA_OK(cudaMemsetAsync(b.output, 0xa5, c.output_bytes(), stream));
  rank.upload(b.input, c.input(rank.rank), stream);
}

TEST(CopyEngine, EveryCollective) {
  for (const int size : {2, 4}) {
    run_gpu_ranks(copy_world(size), [&](Rank& rank) {
      const auto memory = rank.comm->allocate("copies", 8 << 20);
      std::uint64_t seed = 1;
      for (const Collective collective : {Collective::kAllGather, Collective::kAllToAll, Collective::kBroadcast,
                                          Collective::kScatter, Collective::kGather, Collective::kAllReduce}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{1023}, std::size_t{60'000}}) {
          // An all-reduce divides into vectors of 16 bytes a rank.
          const std::size_t n =
              collective == Collective::kAllReduce ? count * 4 * static_cast<std::size_t>(size) : count;
          if (n * 4 > kOutputAt) continue;
          const CollectiveCase c(shape_of(collective, n, size - 1), size, ++seed);
          const Buffers b = place(rank, c, *memory);
          fill_in(rank, c, b, rank.stream);
          ASSERT_EQ(rank.comm->explain(b.call), "copy_engine");
          rank.comm->run(b.call, rank.stream);
          rank.comm->synchronize(rank.stream);
          verify(rank, c, b, "copy engines");
          // A peer that is ahead fills its input and poisons its output: neither is ours any more.
        }
      }
      rank.barrier->arrive_and_wait();
    });
  }
}

TEST(CopyEngine, ChosenForLargeGathers) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(shape_of(Collective::kAllGather, 8 << 20), rank.size, 3);  // 64 MB in all, of 4 bytes
    const auto memory = rank.comm->allocate("copies", c.input_bytes() + c.output_bytes());
    Buffers b;
    b.input = memory->data(rank.rank);
    b.output = b.input + c.input_bytes();
    b.call = c.call(b.input, b.output);
    fill_in(rank, c, b, rank.stream);
    EXPECT_EQ(rank.comm->explain(b.call), device_count() >= rank.size ? "copy_engine" : "registered");
    rank.comm->run(b.call, rank.stream);
    rank.comm->synchronize(rank.stream);
    verify(rank, c, b, "chosen");
    rank.barrier->arrive_and_wait();
  });
}

// Memory of the caller's own, once all ranks have registered it: only when told to.
TEST(CopyEngine, RegisteredMemory) {
  for (const bool told : {true, false}) {
    run_gpu_ranks(told ? copy_world(2) : GpuWorld{}, [&](Rank& rank) {
      auto regions = rank.comm->register_memory({{rank.memory, std::size_t{32} << 20}});
      for (const Collective collective : {Collective::kAllGather, Collective::kAllReduce}) {
        const CollectiveCase c(shape_of(collective, 600'000), rank.size, 4);
        Buffers b;
        b.input = rank.memory;
        b.output = rank.memory + (std::size_t{16} << 20);
        b.call = c.call(b.input, b.output);
        fill_in(rank, c, b, rank.stream);
        EXPECT_EQ(rank.comm->explain(b.call), told ? "copy_engine" : "registered");
        rank.comm->run(b.call, rank.stream);
        rank.comm->synchronize(rank.stream);
        verify(rank, c, b, "registered");
      }
      rank.comm->unregister_memory(std::move(regions));
      rank.barrier->arrive_and_wait();
    });
  }
}

TEST(CopyEngine, ReplayWithChangingData) {
  run_gpu_ranks(copy_world(2), [&](Rank& rank) {
    const auto memory = rank.comm->allocate("captured", 8 << 20);
    const auto other = rank.comm->allocate("eager", 8 << 20);
    const CaseShape shape = shape_of(Collective::kAllGather, 50'000), sum = shape_of(Collective::kAllReduce, 8000);
    const CollectiveCase first(shape, rank.size, 1), eager_sum(sum, rank.size, 2);
    const Buffers b = place(rank, first, *memory), eager = place(rank, eager_sum, *other);
    fill_in(rank, eager_sum, eager, rank.other_stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.other_stream));
    rank.barrier->arrive_and_wait();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    rank.comm->run(b.call, rank.stream);
    // A call outside of the capture, while it goes on: its copies do not end up in the graph.
    rank.comm->run(eager.call, rank.other_stream);
    rank.comm->run(b.call, rank.stream);
    TUTTI_CUDA_OK(cudaStreamEndCapture(rank.stream, &graph));
    rank.comm->synchronize(rank.other_stream);
    verify(rank, eager_sum, eager, "during a capture");
    std::size_t nodes = 0;
    TUTTI_CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 2u + 2u * (2 + static_cast<std::size_t>(rank.size)))
        << "two meetings and a copy a rank, twice, and the two that keep replays in order";
    TUTTI_CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    TUTTI_CUDA_OK(cudaGraphDestroy(graph));
    TUTTI_CUDA_OK(cudaGraphUpload(executable, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    for (std::uint64_t round = 1; round <= 20; ++round) {
      const CollectiveCase c(shape, rank.size, round * 10), next(sum, rank.size, round * 10 + 1);
      fill_in(rank, c, b, rank.stream);
      TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
      // Calls of other kinds between replays, on the same stream.
      fill_in(rank, next, eager, rank.stream);
      rank.comm->run(eager.call, rank.stream);
      rank.comm->run(eager.call, rank.stream);
      rank.comm->synchronize(rank.stream);
      verify(rank, c, b, "replay " + std::to_string(round));
      verify(rank, next, eager, "between replays");
    }
    TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
    rank.barrier->arrive_and_wait();
  });
}

// The copies of a captured call: those to peers are a chain, so that one is on the links at a time; the one at home
// waits for none of them, nor they for it.
TEST(CopyEngine, CopiesToPeersComeOneAfterAnother) {
  constexpr int kRanks = 4;
  run_gpu_ranks(copy_world(kRanks), [&](Rank& rank) {
    const auto memory = rank.comm->allocate("captured", 8 << 20);
    const CollectiveCase c(shape_of(Collective::kAllGather, 5000), rank.size, 1);
    const Buffers b = place(rank, c, *memory);
    cudaGraph_t graph = nullptr;
    TUTTI_CUDA_OK(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    rank.comm->run(b.call, rank.stream);
    TUTTI_CUDA_OK(cudaStreamEndCapture(rank.stream, &graph));
    std::size_t count = 0;
    TUTTI_CUDA_OK(cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    TUTTI_CUDA_OK(cudaGraphGetNodes(graph, nodes.data(), &count));
    std::map<cudaGraphNode_t, int> peer_of;  // of each copy, whom it goes to
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type{};
      TUTTI_CUDA_OK(cudaGraphNodeGetType(node, &type));
      if (type != cudaGraphNodeTypeMemcpy) continue;
      cudaMemcpy3DParms copy{};
      TUTTI_CUDA_OK(cudaGraphMemcpyNodeGetParams(node, &copy));
      const auto* to = static_cast<const std::byte*>(copy.dstPtr.ptr);
      for (int p = 0; p < kRanks; ++p) {
        if (to >= memory->data(p) && to < memory->data(p) + (8 << 20)) peer_of[node] = p;
      }
    }
    ASSERT_EQ(peer_of.size(), static_cast<std::size_t>(kRanks));
    std::map<cudaGraphNode_t, int> followers;
    int first_to_a_peer = 0;
    for (const auto& [node, peer] : peer_of) {
      std::size_t before = 0;
      TUTTI_CUDA_OK(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &before));
      ASSERT_EQ(before, 1u);
      cudaGraphNode_t previous = nullptr;
      cudaGraphEdgeData edge{};
      TUTTI_CUDA_OK(cudaGraphNodeGetDependencies(node, &previous, &edge, &before));
      if (peer == rank.rank) {
        EXPECT_FALSE(peer_of.contains(previous)) << "the copy at home waits for another one";
      } else if (peer_of.contains(previous)) {
        EXPECT_NE(peer_of[previous], rank.rank) << "a copy waits for the one at home";
        EXPECT_EQ(++followers[previous], 1) << "two copies to peers run beside each other";
      } else {
        ++first_to_a_peer;
      }
    }
    EXPECT_EQ(first_to_a_peer, 1);
    TUTTI_CUDA_OK(cudaGraphDestroy(graph));
    rank.barrier->arrive_and_wait();
  });
}

TEST(CopyEngine, AMissingPeerIsATimeout) {
  run_gpu_ranks(copy_world(2), [&](Rank& rank) {
    const auto memory = rank.comm->allocate("copies", 8 << 20);
    const CollectiveCase c(shape_of(Collective::kAllGather, 1000), rank.size, 1);
    const Buffers b = place(rank, c, *memory);
    fill_in(rank, c, b, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.comm->set_timeout(std::chrono::milliseconds(300));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) {
      rank.comm->run(b.call, rank.stream);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      const auto failure = rank.comm->failure();
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->kind(), ErrorKind::kTimeout);
      EXPECT_NE(std::string(failure->what()).find("rank 1 did not come to all_gather"), std::string::npos)
          << failure->what();
    }
    rank.barrier->arrive_and_wait();
  });
}

TEST(CopyEngine, OtherOffsetsAreAMismatch) {
  run_gpu_ranks(copy_world(2), [&](Rank& rank) {
    const auto memory = rank.comm->allocate("copies", 8 << 20);
    const CollectiveCase c(shape_of(Collective::kAllGather, 1000), rank.size, 1);
    Call call = place(rank, c, *memory).call;
    if (rank.rank == 1) call.output.base += 256;
    rank.comm->run(call, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    const auto failure = rank.comm->failure();
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->kind(), ErrorKind::kMismatch) << failure->what();
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
