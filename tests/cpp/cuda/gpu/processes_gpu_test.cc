// Ranks as processes: memory passes between them as descriptors. On one GPU the processes take turns, so few calls. The
// parent never touches CUDA, which does not survive a fork.
#include <cstdlib>

#include "bootstrap/ranks.h"
#include "bootstrap/store_process.h"
#include "cuda/gpu/plan_ranks.h"
#include "cuda/gpu/registered_case.h"
#include "plan/structure.h"

namespace tutti::cuda::test {
namespace {

using tutti::test::fork_rank;
using tutti::test::StoreProcess;
using tutti::test::wait_for;

// A rank in its own process; true if the body did not throw.
bool run_rank(StoreProcess& store_process, int r, int size, const CudaOptions& options,
              const std::function<void(Rank&)>& body) {
  try {
    const std::shared_ptr<Store> store = store_process.connect();
    Rank rank;
    rank.rank = r;
    rank.size = size;
    rank.device = r % device_count();
    TUTTI_CUDA_OK(cudaSetDevice(rank.device));
    TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    rank.memory_bytes = std::size_t{32} << 20;
    TUTTI_CUDA_OK(cudaMalloc(&rank.memory, rank.memory_bytes));
    CudaOptions mine = options;
    mine.device = rank.device;
    rank.comm = CudaCommunicator::create(store, "processes", r, size, mine);
    body(rank);
    rank.comm.reset();
    return true;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", r, e.what());
    return false;
  }
}

void run_processes(int size, const CudaOptions& options, const std::function<void(Rank&)>& body) {
  StoreProcess store;
  std::vector<pid_t> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(fork_rank([&, r] { return run_rank(store, r, size, options, body); }));
  }
  for (const pid_t rank : ranks) EXPECT_TRUE(wait_for(rank));
}

CudaOptions options_with(const char* transport) {
  CudaOptions options;
  options.settings().cuda_transport = transport;
  options.timeout = std::chrono::seconds(20);
  return options;
}

TEST(Processes, ExchangeMemory) {
  for (const char* transport : {"peer", "host"}) {
    run_processes(2, options_with(transport), [](Rank& rank) {
      for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather, Collective::kBarrier}) {
        for (const std::size_t count : {1, 5000, 300'000}) {
          CaseShape shape;
          shape.collective = collective;
          shape.count = collective == Collective::kBarrier ? 0 : count;
          run_and_verify(rank, shape, count);
        }
      }
    });
  }
}

// Words, packets and puts in memory of other processes, on either kind of memory.
TEST(Processes, Plans) {
  for (const char* transport : {"peer", "host"}) {
    for (plan::Plan plan : {plan::packet_two_step_all_reduce(2), plan::two_step_all_reduce(2)}) {
      plan.name = "between";
      plan.reduce = plan::common_reduction(plan);
      const PlanFolder folder(plan);
      CudaOptions options = options_with(transport);
      options.settings().plan_path = folder.path();
      options.settings().cuda_compile = "off";
      run_processes(2, options, [&](Rank& rank) {
        for (std::uint64_t seed = 1; seed <= 4; ++seed) {
          run_by_plan(rank, shape_of(plan, seed * 1001, seed % 2 == 0), seed, plan);
        }
      });
    }
  }
}

// CUDA IPC for memory of cudaMalloc, descriptors for that of the driver's virtual memory management.
TEST(Processes, RegisterMemoryOfTheirOwn) {
  run_processes(2, options_with("peer"), [](Rank& rank) {
    constexpr std::size_t kMB = std::size_t{1} << 20;
    for (const MemoryKind kind : {MemoryKind::kMalloc, MemoryKind::kSegments, MemoryKind::kPool}) {
      const auto memory = make_memory(kind, rank.device, 10);
      std::byte* const data = memory.get() + 256 * (rank.rank + 1);
      auto regions = rank.comm->register_memory({{data, 9 * kMB}});
      const CollectiveCase c(sum_of(Collective::kAllReduce, 1'000'003), rank.size, 1);
      run_registered(rank, c, data, data + 4 * kMB + 64, true, std::string("memory of ") + name_of(kind));
      const CollectiveCase gathered(sum_of(Collective::kAllGather, 500'000), rank.size, 2);
      run_registered(rank, gathered, rank.memory, data + 3 * kMB, true, std::string("memory of ") + name_of(kind));
      rank.comm->unregister_memory(std::move(regions));
    }
  });
}

// Here, other than among threads, a mapping is something that unregistering could close.
TEST(Processes, GraphsKeepTheMappingsOfTheirCalls) {
  run_processes(2, options_with("peer"), [](Rank& rank) {
    constexpr std::size_t kMB = std::size_t{1} << 20;
    std::vector<std::shared_ptr<std::byte>> kept;  // graphs keep no memory
    for (const MemoryKind kind : {MemoryKind::kMalloc, MemoryKind::kSegments, MemoryKind::kPool}) {
      kept.push_back(make_memory(kind, rank.device, 8));
      std::byte* const data = kept.back().get();
      auto regions = rank.comm->register_memory({{data, 8 * kMB}});
      const CaseShape shape = sum_of(Collective::kAllReduce, 500'003);
      const Call call = CollectiveCase(shape, rank.size, 0).call(data, data + 4 * kMB);
      const std::uint64_t before = rank.comm->direct_calls();
      cudaGraphExec_t graph = capture(rank.stream, [&] { rank.comm->run(call, rank.stream); });
      if (rank.comm->direct_calls() != before + 1) throw std::runtime_error("the captured call ran with copies");
      TUTTI_CUDA_OK(cudaGraphUpload(graph, rank.stream));
      rank.comm->unregister_memory(std::move(regions));
      if (rank.comm->is_registered(data, 1)) throw std::runtime_error("still registered");
      for (std::uint64_t round = 1; round <= 5; ++round) {
        const CollectiveCase c(shape, rank.size, round);
        const Buffers b = buffers_at(rank, c, data, data + 4 * kMB);
        TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
        rank.comm->synchronize(rank.stream);
        verify(rank, c, b, std::string("a replay in unregistered memory of ") + name_of(kind));
      }
      TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
    }
  });
}

TEST(Processes, RegisterNothingInHostMemory) {
  run_processes(2, options_with("host"), [](Rank& rank) {
    try {
      rank.comm->register_memory({{rank.memory, 4096}});
    } catch (const Error& e) {
      if (std::string(e.what()).find("pinned host memory") != std::string::npos) return;
      throw;
    }
    throw std::runtime_error("memory was registered without peer memory");
  });
}

// Copies into memory of another process, by engines instead of kernels.
TEST(Processes, CopyEngines) {
  CudaOptions options = options_with("peer");
  options.settings().cuda_algorithm = "copy_engine";
  run_processes(2, options, [](Rank& rank) {
    const auto memory = rank.comm->allocate("copies", 4 << 20);
    for (const Collective collective : {Collective::kAllGather, Collective::kAllReduce, Collective::kGather}) {
      CaseShape shape;
      shape.collective = collective;
      shape.count = 100'000;
      const CollectiveCase c(shape, rank.size, 5);
      Buffers b;
      b.input = memory->data(rank.rank);
      b.output = b.input + (2 << 20);
      b.call = c.call(b.input, b.output);
      rank.upload(b.input, c.input(rank.rank), rank.stream);
      if (rank.comm->explain(b.call) != "copy_engine") throw std::runtime_error("not by copy engines");
      rank.comm->run(b.call, rank.stream);
      rank.comm->synchronize(rank.stream);
      verify(rank, c, b, "copy engines");
    }
  });
}

// The driver cannot be asked about the link to a GPU that it does not show: then no lines of 128 bytes.
TEST(Processes, GpusThatThePeersDoNotSee) {
  if (gpus_here() < 2 || std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) {
    GTEST_SKIP() << "needs two GPUs, and nobody who has chosen among them";
  }
  StoreProcess store;
  std::vector<pid_t> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.push_back(fork_rank([&, r] {
      ::setenv("CUDA_VISIBLE_DEVICES", std::to_string(r).c_str(), 1);
      return run_rank(store, r, 2, options_with(""), [](Rank& rank) {
        const std::string& transport = rank.comm->transport();
        if (transport == "peer memory") throw std::runtime_error("lines of 128 bytes over a link nobody knows");
        for (const std::size_t count : {5, 50'000, 300'000}) {
          CaseShape shape;
          shape.count = count;
          run_and_verify(rank, shape, count);
        }
      });
    }));
  }
  for (const pid_t rank : ranks) EXPECT_TRUE(wait_for(rank));
}

// The stream of the last call cannot be awaited while it is captured, and what frees memory behind finish() counts on
// it. By processes: what waits for all of a GPU holds up the launches of its process's other threads.
TEST(Processes, FinishWaitsForACallWhoseStreamIsCapturedNow) {
  CudaOptions options = options_with("");
  options.lasting_streams = true;
  run_processes(2, options, [](Rank& rank) {
    CaseShape shape;
    shape.count = 300'000;
    const CollectiveCase c(shape, rank.size, 1);
    const Buffers b = prepare(rank, c, rank.stream);
    cudaStream_t captured = rank.stream;
    TUTTI_CUDA_OK(cudaStreamSynchronize(captured));
    TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));    // to look at the result
    if (rank.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));  // so long rank 0's is under way
    rank.comm->run(b.call, captured);
    cudaGraph_t graph = nullptr;
    TUTTI_CUDA_OK(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
    rank.comm->finish();
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    TUTTI_CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
    verify(rank, c, b, "while its stream is captured");
    TUTTI_CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
    TUTTI_CUDA_OK(cudaStreamEndCapture(captured, &graph));  // which finish() has left whole
    TUTTI_CUDA_OK(cudaGraphDestroy(graph));
  });
}

TEST(Processes, AKilledRankIsATimeoutOfTheOthers) {
  run_processes(2, options_with(""), [](Rank& rank) {
    CaseShape shape;
    shape.count = 1000;
    run_and_verify(rank, shape, 1);
    if (rank.rank == 1) ::_exit(0);
    rank.comm->set_timeout(std::chrono::milliseconds(500));
    try {
      run_and_verify(rank, shape, 2);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::kTimeout) return;
      throw;
    }
    throw std::runtime_error("a call without its peer has returned");
  });
}

}  // namespace
}  // namespace tutti::cuda::test
