// CUDA graphs, streams, and everything mixed.
#include <cstring>
#include <random>

#include "cuda/gpu/gpu_ranks.h"

namespace tutti::cuda::test {
namespace {

CaseShape sum(std::size_t count) {
  CaseShape shape;
  shape.dtype = DataType::kUint32;
  shape.count = count;
  return shape;
}

TEST(Graphs, ReplayWithChangingData) {
  for (const int size : {2, 4}) {
    GpuWorld world;
    world.size = size;
    run_gpu_ranks(world, [&](Rank& rank) {
      std::vector<CaseShape> shapes{sum(5), sum(3000), sum(70'000), sum(400'000)};
      shapes.push_back(sum(1000));
      shapes.back().collective = Collective::kAllGather;
      std::vector<Buffers> buffers;
      for (const CaseShape& shape : shapes)
        buffers.push_back(prepare(rank, CollectiveCase(shape, size, 0), rank.stream));
      const std::size_t arena = rank.used;
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      cudaGraphExec_t graph = capture(rank.stream, [&] {
        for (const Buffers& b : buffers) rank.comm->run(b.call, rank.stream);
      });
      make_ready(rank, graph);
      for (std::uint64_t round = 1; round <= 20; ++round) {
        std::vector<CollectiveCase> cases;
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          cases.emplace_back(shapes[i], size, round * 100 + i);
          rank.upload(buffers[i].input, cases[i].input(rank.rank), rank.stream);
        }
        TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
        // Eager calls between replays use the same sequence numbers.
        rank.used = arena;
        const CollectiveCase eager(sum(1 + round * 100), size, round);
        const Buffers b = prepare(rank, eager, rank.stream);
        for (std::uint64_t i = 0; i < round % 3; ++i) rank.comm->run(b.call, rank.stream);
        rank.comm->synchronize(rank.stream);
        for (std::size_t i = 0; i < shapes.size(); ++i) verify(rank, cases[i], buffers[i], "graph");
        if (round % 3 != 0) verify(rank, eager, b, "eager");
      }
      TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
    });
  }
}

// A captured call reads its factor when it runs: each replay takes the one that lies there then.
TEST(Graphs, ReplayWithChangingFactors) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    CaseShape shape = sum(3000);
    shape.dtype = DataType::kFloat32;
    shape.op = ReduceOp::kPremulSum;
    shape.device_factor = true;
    const Buffers b = prepare(rank, CollectiveCase(shape, rank.size, 0), rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    cudaGraphExec_t graph = capture(rank.stream, [&] { rank.comm->run(b.call, rank.stream); });
    make_ready(rank, graph);
    for (int round = 1; round <= 5; ++round) {
      shape.factor = 0.25 * round;
      const CollectiveCase c(shape, rank.size, static_cast<std::uint64_t>(round));
      rank.upload(b.input, c.input(rank.rank), rank.stream);
      rank.upload(b.factor, stored_factor(shape), rank.stream);
      TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
      rank.comm->synchronize(rank.stream);
      verify(rank, c, b, "factor " + std::to_string(shape.factor));
    }
    TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
  });
}

// Eager calls on two streams, with a capture between them: the second one still waits for the first, though nothing
// else orders the streams.
TEST(Graphs, ACaptureBetweenDoesNotPartEagerCalls) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase large(sum(4'000'000), rank.size, 1), small(sum(10), rank.size, 2);
    const Buffers first = prepare(rank, large, rank.stream), second = prepare(rank, small, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    rank.comm->run(first.call, rank.stream);
    cudaGraphExec_t graph = capture(rank.other_stream, [&] { rank.comm->run(second.call, rank.other_stream); });
    rank.comm->run(second.call, rank.other_stream);
    rank.comm->synchronize(rank.other_stream);
    verify(rank, large, first, "before the capture");
    verify(rank, small, second, "after the capture");
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
  });
}

// The body of a conditional node takes no events, which keep a communicator's calls in order: CUDA refuses the graph,
// and the communicator goes on, with graphs too.
TEST(Graphs, OneWithACallInAConditionalNodeIsRefused) {
  run_gpu_ranks({}, [&](Rank& rank) {
    run_and_verify(rank, sum(1000), 1);
    rank.used = 0;
    const CollectiveCase c(sum(1000), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    cudaGraph_t graph = nullptr;
    TUTTI_CUDA_OK(cudaGraphCreate(&graph, 0));
    cudaGraphNodeParams node{};
    node.type = cudaGraphNodeTypeConditional;
    node.conditional.type = cudaGraphCondTypeIf;
    node.conditional.size = 1;
    TUTTI_CUDA_OK(cudaGraphConditionalHandleCreate(&node.conditional.handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNode_t made = nullptr;
    TUTTI_CUDA_OK(cudaGraphAddNode(&made, graph, nullptr, nullptr, 0, &node));
    TUTTI_CUDA_OK(cudaStreamBeginCaptureToGraph(rank.other_stream, node.conditional.phGraph_out[0], nullptr, nullptr, 0,
                                                cudaStreamCaptureModeThreadLocal));
    rank.comm->run(b.call, rank.other_stream);
    cudaGraph_t body = nullptr;
    TUTTI_CUDA_OK(cudaStreamEndCapture(rank.other_stream, &body));
    cudaGraphExec_t refused = nullptr;
    EXPECT_NE(cudaGraphInstantiate(&refused, graph, 0), cudaSuccess);
    static_cast<void>(cudaGetLastError());
    static_cast<void>(cudaGraphDestroy(graph));
    rank.barrier->arrive_and_wait();
    EXPECT_FALSE(rank.comm->failure().has_value());
    cudaGraphExec_t outside = capture(rank.stream, [&] { rank.comm->run(b.call, rank.stream); });
    make_ready(rank, outside);
    TUTTI_CUDA_OK(cudaGraphLaunch(outside, rank.stream));
    rank.comm->synchronize(rank.stream);
    verify(rank, c, b, "outside");
    run_and_verify(rank, sum(3000), 3);
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaGraphExecDestroy(outside));
  });
}

TEST(Graphs, OutliveTheCommunicator) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(1000), rank.size, 1);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    cudaGraphExec_t graph = capture(rank.stream, [&] { rank.comm->run(b.call, rank.stream); });
    rank.barrier->arrive_and_wait();
    rank.comm.reset();
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    verify(rank, c, b, "graph");
    rank.barrier->arrive_and_wait();
    TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
  });
}

// Streams for so many calls. All ranks have theirs before any issues: making one may wait for the kernels of a GPU that
// ranks share.
std::vector<cudaStream_t> fresh_streams(Rank& rank, int calls) {
  std::vector<cudaStream_t> streams(static_cast<std::size_t>(calls));
  for (cudaStream_t& stream : streams) {
    TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
  rank.barrier->arrive_and_wait();
  return streams;
}

// Issues on each, which ends at once.
void on_ending_streams(const std::vector<cudaStream_t>& streams, const std::function<void(cudaStream_t)>& issue) {
  for (cudaStream_t stream : streams) {
    issue(stream);
    TUTTI_CUDA_OK(cudaStreamDestroy(stream));
  }
}

// The order stays that of issue when each call's stream ends as soon as it is enqueued, the last one's included.
TEST(Streams, MayBeDestroyedBehindACall) {
  constexpr int kCalls = 10;
  run_gpu_ranks({}, [&](Rank& rank) {
    for (const std::size_t count : {5, 70'000, 2'000'000}) {
      rank.used = 0;
      CaseShape shape = sum(count);
      shape.in_place = true;
      const CollectiveCase c(shape, rank.size, count);
      const Buffers b = prepare(rank, c, rank.stream);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      // In place: each doubles what the one before has left.
      const auto sum_on = [&](cudaStream_t stream) { rank.comm->run(b.call, stream); };
      on_ending_streams(fresh_streams(rank, kCalls - 1), sum_on);
      sum_on(rank.stream);
      rank.comm->synchronize(rank.stream);
      const std::vector<std::byte> first = c.expected(rank.rank), got = rank.download(b.output, first.size());
      for (std::size_t i = 0; i < count; ++i) {
        std::uint32_t was = 0, is = 0;
        std::memcpy(&was, &first[4 * i], 4);
        std::memcpy(&is, &got[4 * i], 4);
        if (is == was << (kCalls - 1)) continue;
        throw std::runtime_error("element " + std::to_string(i) + " of " + std::to_string(count) + " is wrong");
      }
      // Messages in one direction would be found to overlap.
      std::byte* const other = rank.allocate(got.size());
      const auto message_on = [&](cudaStream_t stream) {
        rank.comm->exchange({{rank.rank == 0, rank.rank == 0 ? b.output : other, got.size(), 1 - rank.rank, 0}},
                            stream);
      };
      on_ending_streams(fresh_streams(rank, kCalls - 1), message_on);
      message_on(rank.stream);
      rank.comm->synchronize(rank.stream);
      if (rank.rank == 1) EXPECT_EQ(rank.download(other, got.size()), got);
    }
    const CollectiveCase last(sum(400'000), rank.size, 1);
    const Buffers b = prepare(rank, last, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    on_ending_streams(fresh_streams(rank, 1), [&](cudaStream_t stream) { rank.comm->run(b.call, stream); });
    rank.comm.reset();  // waits for that call
    verify(rank, last, b, "the last call");
    rank.barrier->arrive_and_wait();
  });
}

// They run as messages between two ranks, and are collectives all the same.
TEST(Streams, UnevenCallsAreInOrderWithTheOthers) {
  run_gpu_ranks({}, [&](Rank& rank) {
    constexpr std::size_t kCount = 2'000'000, kBytes = 4 * kCount;
    const auto size = static_cast<std::size_t>(rank.size);
    CaseShape shape = sum(kCount);
    shape.in_place = true;
    const CollectiveCase c(shape, rank.size, 1);
    const Buffers b = prepare(rank, c, rank.stream);
    std::byte* const gathered = rank.allocate(size * kBytes);
    std::vector<void*> parts;
    const std::vector<std::size_t> bytes(size, kBytes);
    for (std::size_t r = 0; r < size; ++r) parts.push_back(gathered + r * kBytes);
    Call gather;
    gather.collective = Collective::kGather;
    gather.dtype = b.call.dtype;
    gather.count = kCount;
    gather.uneven = true;
    gather.root = 0;
    gather.input = Blocks::single(b.output, kBytes);
    if (rank.rank == 0) gather.output = Blocks::list(parts.data(), bytes.data());
    const std::vector<cudaStream_t> streams = fresh_streams(rank, 2);
    rank.comm->run(b.call, streams[0]);
    rank.comm->run(gather, streams[1]);
    rank.comm->run(b.call, streams[0]);  // which overwrites what is gathered
    rank.comm->synchronize(streams[0]);
    rank.comm->synchronize(streams[1]);
    for (std::size_t r = 0; rank.rank == 0 && r < size; ++r) {
      EXPECT_EQ(rank.download(gathered + r * kBytes, kBytes), c.expected(static_cast<int>(r))) << r;
    }
    rank.barrier->arrive_and_wait();
  });
}

// Replays and eager calls on three streams run in the order in which the host has launched them, also where ranks
// launch them at other times and what precedes a replay's first kernel takes long. In place, so that each multiplies.
TEST(Replays, AndEagerCallsAreInOrder) {
  constexpr int kRounds = 20;
  for (const std::size_t count : {5, 300'000}) {
    for (const int calls : {1, 3}) {
      GpuWorld world;
      run_gpu_ranks(world, [&](Rank& rank) {
        const auto size = static_cast<std::uint32_t>(rank.size);
        CaseShape shape = sum(count);
        shape.in_place = true;
        const CollectiveCase c(shape, rank.size, count);
        const Buffers b = prepare(rank, c, rank.stream);
        std::byte* const other = rank.allocate(c.expected(rank.rank).size());
        const std::size_t bytes = c.expected(rank.rank).size();
        const std::vector<cudaStream_t> streams = fresh_streams(rank, 3);
        rank.comm->run(b.call, rank.stream);
        TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
        std::vector<cudaGraphExec_t> graphs;
        for (int which = 0; which < 2; ++which) {
          graphs.push_back(capture(rank.stream, [&] {
            for (int i = 0; i < 8; ++i) {  // long before the first kernel
              TUTTI_CUDA_OK(cudaMemcpyAsync(other, b.output, bytes, cudaMemcpyDeviceToDevice, rank.stream));
            }
            for (int call = 0; call < calls; ++call) rank.comm->run(b.call, rank.stream);
          }));
          make_ready(rank, graphs.back());
        }
        std::uint32_t factor = 1;
        for (int round = 0; round < kRounds; ++round) {
          if (rank.rank == round % rank.size) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          TUTTI_CUDA_OK(cudaGraphLaunch(graphs[0], streams[0]));
          rank.comm->run(b.call, streams[2]);
          TUTTI_CUDA_OK(cudaGraphLaunch(graphs[1], streams[1]));
          TUTTI_CUDA_OK(cudaGraphLaunch(graphs[0], streams[2]));
          rank.comm->run(b.call, streams[0]);
          for (int call = 0; call < 3 * calls + 2; ++call) factor *= size;  // modulo 2^32, as the sums
        }
        for (cudaStream_t stream : streams) rank.comm->synchronize(stream);
        const std::vector<std::byte> first = c.expected(rank.rank), got = rank.download(b.output, bytes);
        for (std::size_t i = 0; i < count; ++i) {
          std::uint32_t was = 0, is = 0;
          std::memcpy(&was, &first[4 * i], 4);
          std::memcpy(&is, &got[4 * i], 4);
          ASSERT_EQ(is, was * factor) << "element " << i;
        }
        rank.barrier->arrive_and_wait();
        for (cudaGraphExec_t graph : graphs) TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
        for (cudaStream_t stream : streams) TUTTI_CUDA_OK(cudaStreamDestroy(stream));
      });
    }
  }
}

// Sizes, protocols, collectives, streams, eager calls and replays in a random order that all ranks share; payloads are
// unique by call, rank and index; results are looked at after each batch.
TEST(Stress, EverythingMixed) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  for (const int size : {2, 3, 8}) {
    GpuWorld world;
    world.size = size;
    world.options.lasting_streams = true;  // a call on another stream comes after replays on the one before
    world.memory_bytes = std::size_t{192} << 20;
    run_gpu_ranks(world, [&](Rank& rank) {
      std::mt19937_64 random(seed);
      const CollectiveCase fixed(sum(2000), size, 1);
      const Buffers graph_buffers = prepare(rank, fixed, rank.stream);
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      cudaGraphExec_t graph = capture(rank.stream, [&] { rank.comm->run(graph_buffers.call, rank.stream); });
      TUTTI_CUDA_OK(cudaGraphUpload(graph, rank.stream));
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      const std::size_t arena = rank.used;
      for (int batch = 0; batch < 12; ++batch) {
        rank.used = arena;
        std::vector<CollectiveCase> cases;
        std::vector<Buffers> buffers;
        std::vector<int> streams;
        for (int i = 0; i < 60; ++i) {
          CaseShape shape = sum(1 + random() % (std::size_t{1} << (random() % 17)));
          constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduce,       Collective::kBroadcast,
                                         Collective::kAllGather, Collective::kGather,       Collective::kScatter,
                                         Collective::kAllToAll,  Collective::kReduceScatter};
          shape.collective = kAll[random() % 8];
          shape.root = static_cast<int>(random() % static_cast<std::uint64_t>(size));
          shape.in_place = random() % 2 == 0;
          shape.shift = random() % 4;
          streams.push_back(static_cast<int>(random() % 3));
          cases.emplace_back(shape, size, random());
          buffers.push_back(prepare(rank, cases.back(), rank.stream));
        }
        TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
        for (std::size_t i = 0; i < cases.size(); ++i) {
          rank.comm->run(buffers[i].call, streams[i] == 0 ? rank.other_stream : rank.stream);
          // A replay is ordered after the eager calls by its stream alone.
          if (streams[i] == 2) TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
        }
        rank.comm->synchronize(rank.other_stream);
        rank.comm->synchronize(rank.stream);
        for (std::size_t i = 0; i < cases.size(); ++i)
          verify(rank, cases[i], buffers[i], "batch " + std::to_string(batch));
        verify(rank, fixed, graph_buffers, "graph");
      }
      TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
    });
  }
}

TEST(Stress, TwoCommunicatorsOnTwoStreams) {
  const auto second_store = std::make_shared<MemoryStore>();
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    CudaOptions options = world.options;
    options.device = rank.device;
    const auto second = CudaCommunicator::create(second_store, "second", rank.rank, rank.size, options);
    for (std::uint64_t round = 0; round < 30; ++round) {
      rank.used = 0;
      const CollectiveCase a(sum(100 + round * 1000), rank.size, round * 2), b(sum(50'000), rank.size, round * 2 + 1);
      const Buffers on_first = prepare(rank, a, rank.stream), on_second = prepare(rank, b, rank.other_stream);
      // In opposite orders on the two ranks: the communicators are independent.
      if (rank.rank == 0) rank.comm->run(on_first.call, rank.stream);
      second->run(on_second.call, rank.other_stream);
      if (rank.rank != 0) rank.comm->run(on_first.call, rank.stream);
      rank.comm->synchronize(rank.stream);
      second->synchronize(rank.other_stream);
      verify(rank, a, on_first, "first");
      verify(rank, b, on_second, "second");
    }
    rank.barrier->arrive_and_wait();
  });
}

}  // namespace
}  // namespace tutti::cuda::test
