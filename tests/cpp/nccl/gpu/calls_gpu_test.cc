// What the calls compute under NCCL's name on GPUs: against the CPU, bit for bit.
#include "nccl/gpu/nccl_gpu_ranks.h"

namespace nccl_test {
namespace {

using tutti::Collective;
using tutti::DataType;
using tutti::ReduceOp;

constexpr Collective kCollectives[] = {Collective::kAllReduce,     Collective::kReduce,  Collective::kBroadcast,
                                       Collective::kAllGather,     Collective::kGather,  Collective::kScatter,
                                       Collective::kReduceScatter, Collective::kAllToAll};
constexpr DataType kTypes[] = {DataType::kInt8,    DataType::kUint8,    DataType::kInt32,        DataType::kUint32,
                               DataType::kInt64,   DataType::kUint64,   DataType::kFloat16,      DataType::kFloat32,
                               DataType::kFloat64, DataType::kBfloat16, DataType::kFloat8E4M3fn, DataType::kFloat8E5M2};

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

// What NCCL keeps to itself.
bool is_nccls(const CaseShape& s) {
  if (!reduces(s.collective)) return false;
  const bool eight_bits = s.dtype == DataType::kFloat8E4M3fn || s.dtype == DataType::kFloat8E5M2;
  return eight_bits || (s.op == ReduceOp::kAvg && !tutti::is_floating(s.dtype));
}

void each_case(const std::function<void(const CaseShape&)>& visit) {
  for (const Collective collective : kCollectives) {
    for (const DataType dtype : kTypes) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kAvg}) {
        if (op != ReduceOp::kSum && !reduces(collective)) continue;
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{4099}}) {
          CaseShape shape = sum_of(count, collective);
          shape.dtype = dtype;
          shape.op = op;
          shape.root = static_cast<int>(dtype) % 3;
          shape.in_place = count == 1000 && collective != Collective::kAllToAll;
          shape.shift = count == 4099 ? 1 : 0;
          if (!is_nccls(shape)) visit(shape);
        }
      }
    }
  }
}

TEST(NcclOnGpu, EveryCollectiveTypeAndOperation) {
  run_gpu_threads(3, [](GpuRank& rank) {
    std::uint64_t seed = 0;
    each_case([&](const CaseShape& shape) { run_and_check(rank, shape, ++seed); });
    EXPECT_EQ(by_nccl(), "");  // nothing of it was left to the stand-in, which computes nothing
  });
}

TEST(NcclOnGpu, LargeMessages) {
  run_gpu_threads(2, [](GpuRank& rank) {
    run_and_check(rank, sum_of(1'000'003), 1);
    run_and_check(rank, sum_of(500'000, Collective::kAllGather), 2);
    run_and_check(rank, sum_of(500'000, Collective::kReduceScatter), 3);
    EXPECT_EQ(by_nccl(), "");
  });
}

// The root's own result goes where it wants it.
TEST(NcclOnGpu, BroadcastIntoAnotherBuffer) {
  run_gpu_threads(2, [](GpuRank& rank) {
    for (int root = 0; root < 2; ++root) {
      for (const std::size_t count : {1, 5000, 65'536}) {
        CaseShape shape = sum_of(count, Collective::kBroadcast);
        shape.root = root;
        run_and_check(rank, shape, count + static_cast<std::size_t>(root));
      }
    }
    EXPECT_EQ(by_nccl(), "");
  });
}

// Each rank's scalar is its own in NCCL; here they are equal, as the reference has one. On the device it is read when
// the call runs.
TEST(NcclOnGpu, ScaledSums) {
  run_gpu_threads(2, [](GpuRank& rank) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBfloat16}) {
      for (const bool on_device : {false, true}) {
        rank.used = 0;
        CaseShape shape = sum_of(3001);
        shape.dtype = dtype;
        shape.op = ReduceOp::kPremulSum;
        shape.factor = 0.75;
        shape.device_factor = on_device;
        const CollectiveCase c(shape, rank.size, 11);
        const Buffers b = prepare(rank, c, rank.stream);
        std::vector<std::byte> host = stored_factor(shape);
        void* const scalar = on_device ? static_cast<void*>(b.factor) : host.data();
        ncclRedOp_t op = ncclSum;
        expect_success(ncclRedOpCreatePreMulSum(&op, scalar, type_of(dtype),
                                                on_device ? ncclScalarDevice : ncclScalarHostImmediate, rank.nccl),
                       "an operation");
        host.assign(host.size(), std::byte{0xff});  // read when the operation was made
        expect_success(issue(rank.nccl, shape, b, op, rank.stream), "a scaled sum");
        expect_success(ncclRedOpDestroy(op, rank.nccl), "its end");
        TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
        verify(rank, c, b, "scaled");
      }
    }
  });
}

// Three calls in a graph, replayed with other data.
TEST(NcclOnGpu, Graphs) {
  run_gpu_threads(2, [](GpuRank& rank) {
    run_and_check(rank, sum_of(100), 1);
    rank.used = 0;
    const std::array<CaseShape, 3> shapes = {sum_of(1000), sum_of(300, Collective::kAllGather),
                                             sum_of(70'000, Collective::kReduceScatter)};
    std::vector<Buffers> buffers;
    for (const CaseShape& s : shapes) buffers.push_back(prepare(rank, CollectiveCase(s, rank.size, 0), rank.stream));
    TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
    const cudaGraphExec_t graph = tutti::cuda::test::capture(rank.stream, [&] {
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        expect_success(issue(rank.nccl, shapes[i], buffers[i], ncclSum, rank.stream), "a captured call");
      }
    });
    tutti::cuda::test::make_ready(rank, graph);
    for (std::uint64_t round = 1; round <= 4; ++round) {
      std::vector<CollectiveCase> cases;
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        cases.emplace_back(shapes[i], rank.size, round);
        rank.upload(buffers[i].input, cases[i].input(rank.rank), rank.stream);
      }
      TUTTI_CUDA_OK(cudaGraphLaunch(graph, rank.stream));
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      for (std::size_t i = 0; i < shapes.size(); ++i) verify(rank, cases[i], buffers[i], "replayed");
      rank.barrier->arrive_and_wait();
    }
    TUTTI_CUDA_OK(cudaGraphExecDestroy(graph));
    run_and_check(rank, sum_of(200), 9);  // and an eager call behind it
  });
}

// Nested, mixed, on two streams, with messages both ways, which are the stand-in's.
TEST(NcclOnGpu, GroupsOfCalls) {
  run_gpu_threads(2, [](GpuRank& rank) {
    for (std::uint64_t round = 1; round <= 20; ++round) {
      rank.used = 0;
      const std::array<CaseShape, 4> shapes = {sum_of(1000 * round), sum_of(77, Collective::kAllGather),
                                               sum_of(501, Collective::kAllToAll),
                                               sum_of(4000, Collective::kReduceScatter)};
      std::vector<CollectiveCase> cases;
      std::vector<Buffers> buffers;
      for (const CaseShape& s : shapes) {
        buffers.push_back(prepare(rank, cases.emplace_back(s, rank.size, round), rank.stream));
      }
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      expect_success(ncclGroupStart(), "a group");
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        if (i == 1) expect_success(ncclGroupStart(), "a group in it");
        const cudaStream_t on = i % 2 == 0 ? rank.stream : rank.other_stream;
        expect_success(issue(rank.nccl, shapes[i], buffers[i], ncclSum, on), "a call in a group");
        if (i == 1) {
          const int peer = 1 - rank.rank;
          expect_success(ncclSend(buffers[0].input, 4, ncclFloat32, peer, rank.nccl, rank.stream), "a send");
          expect_success(ncclRecv(buffers[0].input, 4, ncclFloat32, peer, rank.nccl, rank.stream), "a receive");
          expect_success(ncclGroupEnd(), "its end");
        }
      }
      expect_success(ncclGroupEnd(), "the end of a group");
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
      TUTTI_CUDA_OK(cudaStreamSynchronize(rank.other_stream));
      for (std::size_t i = 0; i < shapes.size(); ++i) verify(rank, cases[i], buffers[i], "in a group");
    }
  });
}

}  // namespace
}  // namespace nccl_test
