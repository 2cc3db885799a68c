// Ranks of a program of NCCL's on real GPUs, as processes and as threads of one; on as many GPUs as there are, so that
// all of it runs on one.
//
// Every test is in processes of its own: CUDA does not survive a fork, and settings are read once a process.
#pragma once

#include <barrier>
#include <thread>

#include "cuda/gpu/gpu_ranks.h"
#include "nccl/nccl_ranks.h"

namespace nccl_test {

using tutti::cuda::test::Buffers;
using tutti::cuda::test::CaseShape;
using tutti::cuda::test::CollectiveCase;
using tutti::cuda::test::gpus_here;

// As `size` processes, before any of them has asked CUDA.
inline void run_gpu_processes(int size, const std::function<void(Rank&)>& body) {
  run_ranks(size, [&](Rank& rank) {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);  // a hardware queue for each stream
    try {
      body(rank);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << rank.rank() << ": " << error.what();
    }
  });
}

// A rank of one communicator: what lies on its GPU, as the tests of the plug-in have it.
struct GpuRank : tutti::cuda::test::Rank {
  ncclComm_t nccl = nullptr;

  GpuRank(int r, int of) {
    rank = r;
    size = of;
    device = r % tutti::cuda::test::device_count();
    TUTTI_CUDA_OK(cudaSetDevice(device));
    on_device(device);
    TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    TUTTI_CUDA_OK(cudaStreamCreateWithFlags(&other_stream, cudaStreamNonBlocking));
    memory_bytes = std::size_t{32} << 20;
    TUTTI_CUDA_OK(cudaMalloc(&memory, memory_bytes));
  }
};

// As threads of one process: `make` gives each its communicator.
inline void run_gpu_threads(int size, const std::function<ncclComm_t(const GpuRank&, const ncclUniqueId&)>& make,
                            const std::function<void(GpuRank&)>& body) {
  run_gpu_processes(1, [&](Rank&) {
    ncclUniqueId id{};
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::barrier<> barrier(size);
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        try {
          GpuRank rank(r, size);
          rank.barrier = &barrier;
          rank.nccl = make(rank, id);
          barrier.arrive_and_wait();
          if (r == 0) by_nccl();
          barrier.arrive_and_wait();
          body(rank);
          TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
          barrier.arrive_and_wait();  // nothing ends while a peer's kernel may run
        } catch (const std::exception& error) {
          // Its peers would wait for it.
          std::fprintf(stderr, "rank %d: %s\n", r, error.what());
          ::_exit(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}
inline ncclComm_t by_init_rank(const GpuRank& rank, const ncclUniqueId& id) {
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, rank.size, id, rank.rank), ncclSuccess);
  return comm;
}
inline void run_gpu_threads(int size, const std::function<void(GpuRank&)>& body) {
  run_gpu_threads(size, by_init_rank, body);
}

inline ncclDataType_t type_of(tutti::DataType type) {
  switch (type) {
    case tutti::DataType::kInt8:
      return ncclInt8;
    case tutti::DataType::kUint8:
      return ncclUint8;
    case tutti::DataType::kInt32:
      return ncclInt32;
    case tutti::DataType::kUint32:
      return ncclUint32;
    case tutti::DataType::kInt64:
      return ncclInt64;
    case tutti::DataType::kUint64:
      return ncclUint64;
    case tutti::DataType::kFloat16:
      return ncclFloat16;
    case tutti::DataType::kFloat64:
      return ncclFloat64;
    case tutti::DataType::kBfloat16:
      return ncclBfloat16;
    case tutti::DataType::kFloat8E4M3fn:
      return ncclFloat8e4m3;
    case tutti::DataType::kFloat8E5M2:
      return ncclFloat8e5m2;
    default:
      return ncclFloat32;
  }
}
inline ncclRedOp_t op_of(tutti::ReduceOp op) {
  switch (op) {
    case tutti::ReduceOp::kProduct:
      return ncclProd;
    case tutti::ReduceOp::kMax:
      return ncclMax;
    case tutti::ReduceOp::kMin:
      return ncclMin;
    case tutti::ReduceOp::kAvg:
      return ncclAvg;
    default:
      return ncclSum;
  }
}

// The case as a call of NCCL's, on the rank's stream.
inline ncclResult_t issue(ncclComm_t comm, const CaseShape& s, const Buffers& b, ncclRedOp_t op, cudaStream_t on) {
  const ncclDataType_t type = type_of(s.dtype);
  switch (s.collective) {
    case tutti::Collective::kAllReduce:
      return ncclAllReduce(b.input, b.output, s.count, type, op, comm, on);
    case tutti::Collective::kReduce:
      return ncclReduce(b.input, b.output, s.count, type, op, s.root, comm, on);
    case tutti::Collective::kReduceScatter:
      return ncclReduceScatter(b.input, b.output, s.count, type, op, comm, on);
    case tutti::Collective::kBroadcast:
      return ncclBroadcast(b.input, b.output, s.count, type, s.root, comm, on);
    case tutti::Collective::kAllGather:
      return ncclAllGather(b.input, b.output, s.count, type, comm, on);
    case tutti::Collective::kGather:
      return ncclGather(b.input, b.output, s.count, type, s.root, comm, on);
    case tutti::Collective::kScatter:
      return ncclScatter(b.input, b.output, s.count, type, s.root, comm, on);
    default:
      return ncclAlltoAll(b.input, b.output, s.count, type, comm, on);
  }
}

inline void expect_success(ncclResult_t result, const std::string& what) {
  if (result != ncclSuccess) throw std::runtime_error(what + ": " + ncclGetLastError(nullptr));
}

// Issues it, waits, and compares with what the CPU makes of it.
inline void run_and_check(GpuRank& rank, const CaseShape& shape, std::uint64_t seed) {
  rank.used = 0;
  const CollectiveCase c(shape, rank.size, seed);
  const Buffers b = prepare(rank, c, rank.stream);
  expect_success(issue(rank.nccl, shape, b, op_of(shape.op), rank.stream), describe(shape, rank.size));
  TUTTI_CUDA_OK(cudaStreamSynchronize(rank.stream));
  verify(rank, c, b, "under NCCL's name");
}

inline CaseShape sum_of(std::size_t count, tutti::Collective collective = tutti::Collective::kAllReduce) {
  CaseShape shape;
  shape.collective = collective;
  shape.count = count;
  return shape;
}

}  // namespace nccl_test
