// All ranks in one kernel, each with blocks of its own: for tools that run one kernel at a time (compute-sanitizer,
// profilers), under which ranks in kernels of their own would wait for each other for ever.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "algorithm/cuda/kernel_set.cuh"
#include "algorithm/cuda/launch_args.h"
#include "algorithm/cuda/messages.cuh"
#include "algorithm/cuda/norm_launch.h"
#include "algorithm/cuda/quantized_launch.h"
#include "algorithm/cuda/serving_kernel_set.cuh"
#include "cuda/collective_case.h"
#include "cuda/norm_case.h"
#include "cuda/quantized_case.h"
#include "executor/cuda/device_plan.h"
#include "executor/executor_plans.h"
#include "plan/operations.h"
#include "plan/structure.h"

namespace tutti::cuda::test {
namespace {

constexpr int kRanks = 3, kBlocks = 2, kWorkers = 96;

struct RankTeam : GridTeam {
  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x) % kBlocks; }
};

struct Job {
  DeviceWorld world;
  ExchangeArgs exchange;
  TwoShotArgs two_shot;
  AddRmsNormArgs norm;
  QuantizedArgs quantized;
};

template <class F>
__device__ void on_rank(const Job* jobs, F f) {
  f(RankTeam{}, jobs[blockIdx.x / kBlocks]);
}
__global__ void copy_kernel(const Job* jobs, Protocol protocol) {
  on_rank(jobs, [&](const RankTeam& team, const Job& job) {
    if (protocol == Protocol::kLL) ll_copy(team, job.world, job.exchange);
    if (protocol == Protocol::kLL128) ll128_copy(team, job.world, job.exchange);
    if (protocol == Protocol::kBulk) bulk_copy(team, job.world, job.exchange);
  });
}
__global__ void reduce_kernel(const Job* jobs, Protocol protocol) {
  on_rank(jobs, [&](const RankTeam& team, const Job& job) {
    if (protocol == Protocol::kLL) ll_reduce<SumF32>(team, job.world, job.exchange);
    if (protocol == Protocol::kLL128) ll128_reduce<SumF32>(team, job.world, job.exchange);
    if (protocol == Protocol::kBulk) bulk_reduce<SumF32>(team, job.world, job.exchange);
  });
}
__global__ void two_shot_kernel(const Job* jobs, Protocol protocol) {
  on_rank(jobs, [&](const RankTeam& team, const Job& job) {
    if (protocol == Protocol::kLL) ll_two_shot<SumF32>(team, job.world, job.two_shot);
    if (protocol == Protocol::kLL128) ll128_two_shot<SumF32>(team, job.world, job.two_shot);
    if (protocol == Protocol::kBulk) bulk_two_shot<SumF32>(team, job.world, job.two_shot);
  });
}

template <bool kAligned>
__global__ void norm_kernel(const Job* jobs) {
  __shared__ NormScratch scratch;
  on_rank(jobs, [&](const RankTeam& team, const Job& job) {
    add_rms_norm<kAligned, Bf16Lanes>(team, job.world, job.norm, scratch);
  });
}
// The second of two kernels, for all ranks: the control warp has nothing to do. Block b has the rows of both.
template <int kVectors>
__global__ void second_norm_kernel(const Job* jobs) {
  __shared__ NormScratch scratch;
  on_rank(jobs, [&](const RankTeam& team, const Job& job) {
    if (team.is_worker()) add_and_norm<kVectors, Bf16Lanes>(team, job.norm, scratch);
  });
}
template <QuantizedPattern kPattern>
__global__ void sum_of_codes_kernel(const Job* jobs) {
  on_rank(jobs, [&](const RankTeam& team, const Job& job) {
    quantized_all_reduce<kPattern, Bf16Lanes>(team, job.world, job.quantized);
  });
}

// Of plans, whose blocks are as many as they say.
struct PlanJob {
  DeviceWorld world;
  PlanArgs args;
};
struct PlanRankTeam : GridTeam {
  int of_rank = 1;
  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x) % of_rank; }
};
__global__ void plans_kernel(const PlanJob* jobs, int of_rank) {
  const PlanJob& job = jobs[static_cast<int>(blockIdx.x) / of_rank];
  run_plan<SumF32>(PlanRankTeam{{}, of_rank}, job.world, job.args);
}

void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

class OneKernel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const ScratchLayout layout(kRanks);
    ok(cudaMallocHost(&host_, sizeof(device::HostControl) * kRanks));
    make_worlds(layout);
  }
  void TearDown() override {
    for (void* p : owned_) ok(cudaFree(p));
    ok(cudaFreeHost(host_));
  }
  void make_worlds(const ScratchLayout& layout) {
    std::byte* scratch[kRanks] = {};
    for (int r = 0; r < kRanks; ++r) scratch[r] = take(layout.total_bytes());
    for (int r = 0; r < kRanks; ++r) {
      DeviceWorld& world = jobs_[r].world;
      host_[r] = device::HostControl{};
      host_[r].timeout_ns = 60'000'000'000;
      world.rank = world.control.rank = r;
      world.size = world.control.size = kRanks;
      world.layout = layout;
      world.state = reinterpret_cast<RankState*>(take(sizeof(RankState)));
      world.control.failed = &world.state->failed;
      world.control.host = &host_[r];
      for (int p = 0; p < kRanks; ++p) {
        world.scratch[p] = scratch[p];
        world.control.peer_poison[p] = reinterpret_cast<std::uint64_t*>(scratch[p] + layout.poison());
      }
      world.control.poison = world.control.peer_poison[r];
    }
  }
  // Zeroed device memory.
  std::byte* take(std::size_t bytes) {
    void* p = nullptr;
    ok(cudaMalloc(&p, bytes + 16));
    ok(cudaMemset(p, 0, bytes + 16));
    owned_.push_back(p);
    return static_cast<std::byte*>(p);
  }

  void run(const CaseShape& shape, std::uint64_t seed) {
    const CollectiveCase c(shape, kRanks, seed);
    CudaShape cuda_shape{shape.collective, shape.dtype, kRanks, 0, kBlocks, true};
    std::byte none{};
    cuda_shape.bytes = agreed_bytes(c.call(&none, &none), kRanks);
    Choice choice = choose(cuda_shape, parse_forced(std::string(GetParam()) + "@2"));
    choice.blocks = kBlocks;
    SCOPED_TRACE(describe(shape, kRanks) + " " + to_string(choice));
    std::byte* outs[kRanks];
    for (int r = 0; r < kRanks; ++r) {
      std::byte* in = take(c.input_bytes());
      outs[r] = shape.collective == Collective::kBroadcast ? in : take(c.output_bytes());
      ok(cudaMemcpy(in, c.input(r).data(), c.input_bytes(), cudaMemcpyHostToDevice));
      const Call call = c.call(in, outs[r]);
      if (choice.two_shot) {
        jobs_[r].two_shot = make_two_shot(call, kRanks, choice, 7);
      } else {
        jobs_[r].exchange = make_exchange(call, r, kRanks, choice, 7);
      }
    }
    auto* jobs = reinterpret_cast<Job*>(take(sizeof(jobs_)));
    ok(cudaMemcpy(jobs, jobs_, sizeof(jobs_), cudaMemcpyHostToDevice));
    const dim3 grid(kRanks * kBlocks), block(kWorkers + kControlThreads);
    if (choice.two_shot) {
      two_shot_kernel<<<grid, block>>>(jobs, choice.protocol);
    } else if (reduces(shape.collective)) {
      reduce_kernel<<<grid, block>>>(jobs, choice.protocol);
    } else {
      copy_kernel<<<grid, block>>>(jobs, choice.protocol);
    }
    ok(cudaGetLastError());
    ok(cudaDeviceSynchronize());
    for (int r = 0; r < kRanks; ++r) {
      ASSERT_EQ(host_[r].code, 0u) << "rank " << r;
      const std::vector<std::byte> want = c.expected(r);
      std::vector<std::byte> got(want.size());
      if (want.empty()) continue;
      ok(cudaMemcpy(got.data(), outs[r], got.size(), cudaMemcpyDeviceToHost));
      ASSERT_TRUE(got == want) << "rank " << r;
    }
  }

  std::byte* taken(const std::vector<std::byte>& content) {
    std::byte* to = take(content.size());
    ok(cudaMemcpy(to, content.data(), content.size(), cudaMemcpyHostToDevice));
    return to;
  }
  std::vector<std::byte> read(const void* from, std::size_t bytes) {
    std::vector<std::byte> to(bytes);
    ok(cudaMemcpy(to.data(), from, bytes, cudaMemcpyDeviceToHost));
    return to;
  }
  // All ranks in one kernel over the jobs.
  void run_kernel(void (*kernel)(const Job*)) {
    auto* jobs = reinterpret_cast<Job*>(take(sizeof(jobs_)));
    ok(cudaMemcpy(jobs, jobs_, sizeof(jobs_), cudaMemcpyHostToDevice));
    kernel<<<kRanks * kBlocks, kWorkers + kControlThreads>>>(jobs);
    ok(cudaGetLastError());
    ok(cudaDeviceSynchronize());
    for (int r = 0; r < kRanks; ++r) ASSERT_EQ(host_[r].code, 0u) << "rank " << r;
  }

  template <class T>
  const T* placed(const std::vector<T>& list) {
    T* const to = reinterpret_cast<T*>(take(list.size() * sizeof(T)));
    ok(cudaMemcpy(to, list.data(), list.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
  }

  device::HostControl* host_ = nullptr;
  Job jobs_[kRanks];
  std::vector<void*> owned_;
};

TEST_P(OneKernel, EveryCollective) {
  std::uint64_t seed = 1;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast, Collective::kAllGather,
        Collective::kGather, Collective::kScatter, Collective::kAllToAll, Collective::kReduceScatter}) {
    for (const std::size_t count : {1, 333, 2500}) {
      CaseShape shape;
      shape.collective = collective;
      shape.count = count;
      shape.root = 1;
      run(shape, ++seed);
      if (HasFatalFailure()) return;
    }
  }
}

// Rows whose segments keep every warp busy, so that the shared memory of the norm is used by all. By LL in one shot the
// one kernel; else the second of two, over sums that the host has put there.
TEST_P(OneKernel, AddRmsNorm) {
  const bool one_kernel = GetParam() == std::string("ll_one_shot");
  const int vectors = GetParam() == std::string("ll128_one_shot")  ? 1
                      : GetParam() == std::string("bulk_one_shot") ? 2
                      : GetParam() == std::string("bulk_two_shot") ? 4
                                                                   : 0;
  NormShape shape;
  shape.rows = 2 * (one_kernel ? 1 : std::max(vectors, 1));
  shape.hidden = 768;  // three segments: one for each warp
  shape.output = NormOutput::kFp8Rows;
  const NormCase c(shape, kRanks, 3);
  NormBuffers buffers[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    NormBuffers& b = buffers[r];
    b = {taken(one_kernel ? c.input(r) : c.sum()),
         taken(c.residual()),
         taken(c.weight()),
         take(c.residual().size()),
         take(c.expected_output().size()),
         nullptr,
         reinterpret_cast<float*>(take(4 * shape.rows))};
    jobs_[r].norm = make_norm_launch(norm_call(shape, b), kRanks, kBlocks, true, parse_forced("ll_one_shot")).args;
    jobs_[r].norm.input = b.input;
    jobs_[r].norm.block_rows = shape.rows / kBlocks;
    jobs_[r].norm.fingerprint = 7;
  }
  run_kernel(one_kernel     ? norm_kernel<true>
             : vectors == 1 ? second_norm_kernel<1>
             : vectors == 2 ? second_norm_kernel<2>
             : vectors == 4 ? second_norm_kernel<4>
                            : second_norm_kernel<0>);
  for (int r = 0; r < kRanks; ++r) {
    ASSERT_TRUE(read(buffers[r].residual_output, c.residual().size()) == c.expected_residual()) << "rank " << r;
    ASSERT_TRUE(read(buffers[r].output, c.expected_output().size()) == c.expected_output()) << "rank " << r;
  }
}

TEST_P(OneKernel, SumOfCodes) {
  QuantizedShape shape;
  shape.count = 4001;
  const QuantizedCase c(shape, kRanks, 4);
  std::byte* outs[kRanks];
  QuantizedPattern pattern = QuantizedPattern::kBulk;
  for (int r = 0; r < kRanks; ++r) {
    outs[r] = take(c.input(r).size());
    const QuantizedLaunch plan = make_quantized_launch(quantized_call(shape, taken(c.input(r)), outs[r]), kRanks,
                                                       kBlocks, parse_forced(GetParam()));
    pattern = plan.pattern;
    jobs_[r].quantized = plan.args;
    jobs_[r].quantized.fingerprint = 7;
  }
  constexpr void (*kKernels[kQuantizedPatterns])(const Job*) = {sum_of_codes_kernel<QuantizedPattern::kLL>,
                                                                sum_of_codes_kernel<QuantizedPattern::kLLTwoShot>,
                                                                sum_of_codes_kernel<QuantizedPattern::kBulk>};
  run_kernel(kKernels[static_cast<int>(pattern)]);
  for (int r = 0; r < kRanks; ++r) ASSERT_EQ(c.complaint(read(outs[r], c.input(r).size()).data()), "") << "rank " << r;
}

// Interpreted, one plan for each parameter, called three times.
TEST_P(OneKernel, Plans) {
  const std::map<std::string, plan::Plan> plans{{"ll_one_shot", plan::packet_two_step_all_reduce(kRanks)},
                                                {"ll128_one_shot", plan::two_step_all_reduce(kRanks)},
                                                {"bulk_one_shot", plan::ring_all_reduce(kRanks)},
                                                {"ll_two_shot", plan::switch_all_reduce(kRanks)},
                                                {"ll128_two_shot", plan::port_all_gather(kRanks)},
                                                {"bulk_two_shot", plan::looped_all_reduce(kRanks, 64)}};
  plan::Plan chosen = plans.at(GetParam());
  chosen.reduce = plan::common_reduction(chosen);
  const auto shared = std::make_shared<const plan::Plan>(chosen);
  CaseShape shape;
  shape.collective = *plan::rules_of(chosen.collective).call;
  shape.count = 1003;
  const CollectiveCase c(shape, kRanks, 5);
  std::vector<std::unique_ptr<executor::DevicePlan>> devices;
  executor::DeviceMemory memory;
  for (int r = 0; r < kRanks; ++r) {
    devices.push_back(std::make_unique<executor::DevicePlan>(shared, r, executor::DeviceLimits{64, 1UL << 20}));
    memory.ranks.push_back(take(devices.back()->memory_bytes()));
  }
  const plan::Shape blocks = plan::shape_of(chosen);
  std::vector<PlanJob> jobs(kRanks);
  std::byte *inputs[kRanks], *outputs[kRanks];
  for (int r = 0; r < kRanks; ++r) {
    const executor::DevicePlan& device = *devices[static_cast<std::size_t>(r)];
    memory.state = taken(device.state());
    const executor::DeviceRecords records = device.records({.bytes = shape.count * 4}, memory);
    PlanJob& job = jobs[static_cast<std::size_t>(r)];
    job.world = jobs_[r].world;
    job.args.ops = placed(records.ops);
    job.args.operands = placed(records.operands);
    job.args.blocks = placed(records.blocks);
    job.args.invocations = reinterpret_cast<std::uint64_t*>(memory.state);
    job.args.slots = reinterpret_cast<std::uint64_t*>(memory.state + device.slots_offset());
    job.args.halves = device.halves();
    job.args.fingerprint = 7;
    inputs[r] = taken(c.input(r));
    outputs[r] = take(c.output_bytes());
    for (int side = 0; side < 2; ++side) {
      for (int b = 0; b < blocks.blocks[static_cast<std::size_t>(side)]; ++b) {
        job.args.user[side * executor::kUserBlocks + b] = (side == 0 ? inputs : outputs)[r] + shape.count * 4 * b;
      }
    }
  }
  const PlanJob* const list = placed(jobs);
  const int of_rank = devices[0]->blocks();
  for (std::uint64_t call = 0; call < 3; ++call) {
    const CollectiveCase next(shape, kRanks, 5 + call);
    for (int r = 0; r < kRanks; ++r) {
      ok(cudaMemcpy(inputs[r], next.input(r).data(), next.input_bytes(), cudaMemcpyHostToDevice));
    }
    plans_kernel<<<kRanks * of_rank, kWorkers + kControlThreads>>>(list, of_rank);
    ok(cudaGetLastError());
    ok(cudaDeviceSynchronize());
    for (int r = 0; r < kRanks; ++r) {
      ASSERT_EQ(host_[r].code, 0u) << "rank " << r;
      ASSERT_TRUE(read(outputs[r], next.expected(r).size()) == next.expected(r)) << "rank " << r << ", call " << call;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, OneKernel,
                         testing::Values("ll_one_shot", "ll128_one_shot", "bulk_one_shot", "ll_two_shot",
                                         "ll128_two_shot", "bulk_two_shot"),
                         [](const auto& which) { return std::string(which.param); });

}  // namespace
}  // namespace tutti::cuda::test
