// A message waits on the GPU for a peer that does other things first: groups end and begin, graphs go, memory is
// registered and given back. None of it waits for that kernel, or the ranks would wait for each other.
#include "cuda/gpu/registered_case.h"

namespace tutti::cuda::test {
namespace {

constexpr std::size_t kMB = std::size_t{1} << 20;

// A communicator of the same ranks beside rank.comm.
std::shared_ptr<CudaCommunicator> beside(const Rank& rank, const std::shared_ptr<Store>& store, const std::string& id,
                                         const CudaOptions& given) {
  CudaOptions options = given;
  options.device = rank.device;
  return CudaCommunicator::create(store, id, rank.rank, rank.size, options);
}

void run_beside(Rank& rank, CudaCommunicator& comm, std::uint64_t seed) {
  CaseShape shape;
  shape.count = 3000;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.other_stream);
  comm.run(b.call, rank.other_stream);
  comm.synchronize(rank.other_stream);
  const std::vector<std::byte> want = c.expected(rank.rank);
  std::vector<std::byte> got(want.size());
  TUTTI_CUDA_OK(cudaMemcpyAsync(got.data(), b.output, got.size(), cudaMemcpyDeviceToHost, rank.other_stream));
  TUTTI_CUDA_OK(cudaStreamSynchronize(rank.other_stream));
  EXPECT_EQ(got, want) << "rank " << rank.rank << ", call " << seed;
}

class UnderWay : public testing::TestWithParam<std::string> {};

TEST_P(UnderWay, AMessageHoldsUpNothingElse) {
  GpuWorld world;
  world.options.timeout = std::chrono::seconds(30);  // what waits for the message fails the test by its deadline
  world.options.settings().cuda_transport = GetParam();
  const auto store = std::make_shared<MemoryStore>();
  run_gpu_ranks(world, [&](Rank& rank) {
    auto ended = beside(rank, store, "ended", world.options);
    auto graphed = beside(rank, store, "graphed", world.options);
    run_beside(rank, *ended, 1);
    const CollectiveCase in_graph(CaseShape{}, rank.size, 2);
    const Buffers captured = prepare(rank, in_graph, rank.other_stream);
    cudaGraphExec_t graph = capture(rank.other_stream, [&] { graphed->run(captured.call, rank.other_stream); });
    graphed.reset();  // lives in its graph
    const auto memory = make_memory(MemoryKind::kPool, rank.device, 4);
    const bool registers = world.options.config->cuda_transport != "host";  // what peers cannot reach is refused
    const auto register_in = [&](CudaCommunicator& comm) {
      return registers ? comm.register_memory({{memory.get(), 4 * kMB}}) : std::vector<std::shared_ptr<CudaRegion>>();
    };
    auto regions = register_in(*ended);

    const std::size_t bytes = 32 * kMB;
    std::byte* const buffer = rank.allocate(bytes);
    const auto byte = static_cast<std::byte>(rank.rank == 0 ? 7 : 0);
    rank.upload(buffer, std::vector<std::byte>(bytes, byte), rank.stream);
    const auto exchange = [&] {
      rank.comm->exchange({{rank.rank == 0, buffer, bytes, 1 - rank.rank, 0}}, rank.stream);
    };
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    if (rank.rank == 0) exchange();

    if (registers) ended->unregister_memory(std::move(regions));
    ended.reset();
    TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
    for (std::uint64_t round = 0; round < 3; ++round) {
      const auto fresh = beside(rank, store, "fresh " + std::to_string(round), world.options);
      run_beside(rank, *fresh, 3 + round);
      if (registers) fresh->unregister_memory(register_in(*fresh));
    }
    if (rank.rank == 0) {
      EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady) << "the message is not under way";
    }

    rank.barrier->arrive_and_wait();
    if (rank.rank == 1) exchange();
    rank.comm->synchronize(rank.stream);
    if (rank.rank == 1) {
      EXPECT_EQ(rank.download(buffer, bytes), std::vector<std::byte>(bytes, std::byte{7}));
    }
    rank.barrier->arrive_and_wait();
  });
}

INSTANTIATE_TEST_SUITE_P(Cuda, UnderWay, testing::Values("", "host"),
                         [](const auto& which) { return which.param.empty() ? std::string("chosen") : which.param; });

// One message graph twice at a time on one rank: the kernels of one direction find each other. The message is more than
// the ring holds, or the first would end at once.
TEST(UnderWay, ReplaysOfMessagesThatOverlapAreFound) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    constexpr std::size_t kBytes = 8 * kMB;
    std::byte* const buffer = rank.allocate(kBytes);
    const auto exchange = [&](cudaStream_t stream) {
      rank.comm->exchange({{rank.rank == 0, buffer, kBytes, 1 - rank.rank, 0}}, stream);
    };
    exchange(rank.stream);
    rank.comm->synchronize(rank.stream);
    const auto captured = [&] {
      return capture(
          rank.stream, [&] { exchange(rank.stream); }, Order::kLost);
    };
    const cudaGraphExec_t first = captured();
    expect_overlap_found(rank, first, captured());
  });
}

}  // namespace
}  // namespace tutti::cuda::test
