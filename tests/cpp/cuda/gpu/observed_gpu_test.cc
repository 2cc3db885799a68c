// What can be seen of calls on GPUs from outside: counts, the flight recorder, timeouts of single calls, the number of
// blocks, and errors that name both calls.
#include <nlohmann/json.hpp>

#include "cuda/gpu/gpu_ranks.h"
#include "tutti/cuda/report.h"

namespace tutti::cuda::test {
namespace {

CaseShape sum(std::size_t count) {
  CaseShape shape;
  shape.count = count;
  return shape;
}

std::vector<std::string> states(const CudaCommunicator& comm) {
  std::vector<std::string> result;
  const nlohmann::json record = nlohmann::json::parse(comm.flight_record());
  for (const auto& e : record["entries"]) {
    result.push_back(e["captured"] == true ? "captured" : e["failed"] == true ? "failed" : e["state"]);
  }
  return result;
}

TEST(Observed, CountsAndRecords) {
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(1000), rank.size, 1);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    cudaGraphExec_t executable = capture(rank.stream, [&] { rank.comm->run(b.call, rank.stream); });
    make_ready(rank, executable);
    for (int i = 0; i < 3; ++i) TUTTI_CUDA_OK(cudaGraphLaunch(executable, rank.stream));
    rank.comm->run(b.call, rank.stream);
    std::byte* target = rank.allocate(100);
    rank.comm->exchange({{true, b.input, 100, 1 - rank.rank, 5}, {false, target, 100, 1 - rank.rank, 5}}, rank.stream);
    rank.comm->synchronize(rank.stream);
    EXPECT_EQ(states(*rank.comm), (std::vector<std::string>{"captured", "completed", "completed", "completed"}));
    const Metrics metrics = rank.comm->metrics();
    EXPECT_EQ(metrics.device_calls, 4u);
    ASSERT_EQ(metrics.rows.size(), 3u);  // all_reduce, send, recv
    for (const MetricsRow& row : metrics.rows) {
      EXPECT_EQ(row.device, "cuda");
      EXPECT_EQ(row.calls, row.collective == "all_reduce" ? 2u : 1u) << row.collective;
      EXPECT_EQ(row.bytes, row.collective == "all_reduce" ? 8000u : 100u) << row.collective;
    }
    rank.comm->reset_metrics();
    EXPECT_TRUE(rank.comm->metrics().rows.empty());
    TUTTI_CUDA_OK(cudaGraphExecDestroy(executable));
  });
}

// While a kernel waits, the record says so; it does not wait for the kernel.
TEST(Observed, ACallHasItsOwnTimeout) {
  GpuWorld world;
  world.options.timeout = std::chrono::minutes(2);
  run_gpu_ranks(world, [&](Rank& rank) {
    run_and_verify(rank, sum(500), 1);
    if (rank.rank == 0) {
      const CollectiveCase c(sum(500), rank.size, 2);
      const Buffers b = prepare(rank, c, rank.stream);
      const auto begin = std::chrono::steady_clock::now();
      rank.comm->run(b.call, rank.stream, std::chrono::milliseconds(700));
      // The kernel starts some time after its launch, and may have ended when this thread was late.
      std::vector<std::string> seen = states(*rank.comm);
      while (seen.back() == "scheduled") seen = states(*rank.comm);
      EXPECT_EQ(seen.front(), "completed");
      EXPECT_TRUE(seen.back() == "started" || seen.back() == "failed") << seen.back();
      EXPECT_THROW(rank.comm->synchronize(rank.stream), Error);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1)) << "it waited for the group's";
      ASSERT_TRUE(rank.comm->failure().has_value());
      EXPECT_EQ(rank.comm->failure()->kind(), ErrorKind::kTimeout);
      EXPECT_EQ(states(*rank.comm), (std::vector<std::string>{"completed", "failed"}));
    }
    rank.barrier->arrive_and_wait();
  });
}

TEST(Observed, MismatchesNameBothCalls) {
  GpuWorld world;
  world.size = 3;
  run_gpu_ranks(world, [&](Rank& rank) {
    const CollectiveCase c(sum(rank.rank == 1 ? 200 : 100), rank.size, 2);
    const Buffers b = prepare(rank, c, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    rank.barrier->arrive_and_wait();
    rank.comm->run(b.call, rank.stream);
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    ASSERT_TRUE(rank.comm->failure().has_value());
    const std::string text = rank.comm->failure()->what();
    EXPECT_EQ(rank.comm->failure()->kind(), ErrorKind::kMismatch) << text;
    EXPECT_NE(text.find("all_reduce f32[100] sum"), std::string::npos) << "rank " << rank.rank << ": " << text;
    EXPECT_NE(text.find("all_reduce f32[200] sum"), std::string::npos) << "rank " << rank.rank << ": " << text;
    rank.barrier->arrive_and_wait();
  });
}

// The least that a rank asks for counts for all: else they would wait for blocks that are not there.
TEST(Observed, RanksAgreeOnTheBlocks) {
  const auto store = std::make_shared<MemoryStore>();
  GpuWorld world;
  run_gpu_ranks(world, [&](Rank& rank) {
    CudaOptions options = world.options;
    options.device = rank.device;
    options.settings().cuda_max_blocks = rank.rank == 0 ? 3 : 7;
    rank.comm = CudaCommunicator::create(store, "few blocks", rank.rank, rank.size, options);
    // The one before has been freed, which waits for the whole device: no kernel may wait for a peer that frees.
    rank.barrier->arrive_and_wait();
    for (const std::size_t count : {std::size_t{100}, std::size_t{100'000}, std::size_t{3'000'000}}) {
      const CollectiveCase c(sum(count), rank.size, 2);
      rank.used = 0;
      const Buffers b = prepare(rank, c, rank.stream);
      const std::string chosen = rank.comm->explain(b.call);
      EXPECT_LE(std::stoi(chosen.substr(chosen.find('@') + 1)), 3) << chosen;
      run_and_verify(rank, sum(count), 3);
    }
    rank.barrier->arrive_and_wait();
  });
}

TEST(Observed, TheReportKnowsTheDevices) {
  const CudaReport report = cuda_report();
  EXPECT_EQ(report.plugin_problem, "");
  EXPECT_EQ(report.problem, "");
  ASSERT_EQ(static_cast<int>(report.devices.size()), device_count());
  for (std::size_t i = 0; i < report.devices.size(); ++i) {
    const CudaDeviceReport& device = report.devices[i];
    EXPECT_GT(device.processors, 0);
    EXPECT_GT(device.memory_bytes, std::size_t{1} << 30);
    EXPECT_EQ(device.reach.size(), report.devices.size());
    EXPECT_EQ(device.reach[i], CudaReach::kAtomic);
  }
  run_gpu_ranks(GpuWorld{}, [](Rank& rank) {
    const std::string transport = rank.comm->transport();
    EXPECT_TRUE(transport.starts_with("peer memory") || transport.starts_with("pinned host memory")) << transport;
  });
}

}  // namespace
}  // namespace tutti::cuda::test
