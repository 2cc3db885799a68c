#include "algorithm/cuda/kernel_set.cuh"
#include "algorithm/cuda/kernels.h"
#include "algorithm/cuda/meet.cuh"
#include "algorithm/cuda/messages.cuh"
#include "algorithm/cuda/probe.cuh"
#include "algorithm/cuda/serving_kernel_set.cuh"
#include "algorithm/cuda/twin.cuh"

namespace tutti::cuda {
namespace {

__global__ void __launch_bounds__(kMostThreads)
    ll_copy_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  await_preceding();
  ll_copy(GridTeam{}, world, args);
}
__global__ void __launch_bounds__(kMostThreads)
    ll128_copy_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  await_preceding();
  ll128_copy(GridTeam{}, world, args);
}
__global__ void __launch_bounds__(kMostThreads)
    bulk_copy_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  bulk_copy(GridTeam{}, world, args);
}
template <int N>
__global__ void __launch_bounds__(kMostThreads, 1)  // as of ll_uniform_kernel()
    ll_uniform_copy_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ UniformArgs args) {
  await_preceding();
  ll_uniform_copy<N>(GridTeam{}, world, args);
}
__global__ void __launch_bounds__(kMostThreads)
    direct_all_gather_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ DirectArgs args) {
  direct_all_gather(GridTeam{}, world, args);
}
__global__ void __launch_bounds__(kMostThreads)
    meet_ranks_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ MeetArgs args) {
  meet(GridTeam{}, world, args);
}
template <class Args>
__global__ void __launch_bounds__(kMostThreads)
    messages_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ Args args) {
  run_messages(GridTeam{}, world, args);
}
__global__ void __launch_bounds__(kMostThreads)
    probe_pairs_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ProbeArgs args) {
  probe(GridTeam{}, world, args);
}
__global__ void twin_meeting_kernel(const __grid_constant__ TwinArgs args) { meet_twin(args); }

template <class Kernel>
const void* address(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

const KernelSet& set_of(Reducer reducer) {
  static const KernelSet sets[] = {kernels_sum_f32(), kernels_sum_bf16(), kernels_sum_f16(), kernels_any()};
  return sets[static_cast<int>(reducer)];
}

const ServingKernelSet& serving_set_of(DataType dtype) {
  static const ServingKernelSet sets[] = {serving_kernels_bf16(), serving_kernels_f16(), serving_kernels_f32()};
  return sets[dtype == DataType::kBfloat16 ? 0 : dtype == DataType::kFloat16 ? 1 : 2];
}

}  // namespace

Reducer reducer_of(DataType dtype, ReduceOp op) noexcept {
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg) return Reducer::kAny;
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kComplex64:
      return Reducer::kSumF32;
    case DataType::kBfloat16:
      return Reducer::kSumBf16;
    case DataType::kFloat16:
    case DataType::kComplex32:
      return Reducer::kSumF16;
    default:
      return Reducer::kAny;
  }
}

const void* kernel_of(Protocol protocol, Pattern pattern, Reducer reducer) noexcept {
  const auto index = static_cast<int>(protocol);
  switch (pattern) {
    case Pattern::kReduce:
      return set_of(reducer).reduce[index];
    case Pattern::kTwoShot:
      return set_of(reducer).two_shot[index];
    case Pattern::kCopy:
      break;
  }
  const void* const copies[] = {address(&ll_copy_kernel), address(&ll128_copy_kernel), address(&bulk_copy_kernel)};
  return copies[index];
}

const void* uniform_kernel(bool reduce, Reducer reducer, int size) noexcept {
  static_assert(device::kMaxRanks == 8);
  const void* const copies[] = {address(&ll_uniform_copy_kernel<2>), address(&ll_uniform_copy_kernel<3>),
                                address(&ll_uniform_copy_kernel<4>), address(&ll_uniform_copy_kernel<5>),
                                address(&ll_uniform_copy_kernel<6>), address(&ll_uniform_copy_kernel<7>),
                                address(&ll_uniform_copy_kernel<8>)};
  return reduce ? set_of(reducer).ll_uniform[size] : copies[size - 2];
}
const void* direct_kernel(Collective collective, Reducer reducer) noexcept {
  switch (collective) {
    case Collective::kAllReduce:
      return set_of(reducer).direct_all_reduce;
    case Collective::kReduceScatter:
      return set_of(reducer).direct_reduce_scatter;
    case Collective::kAllGather:
      return address(&direct_all_gather_kernel);
    default:
      return nullptr;
  }
}
const void* plan_kernel_of(Reducer reducer) noexcept { return set_of(reducer).plan; }
const void* meet_kernel() noexcept { return address(&meet_ranks_kernel); }
const void* add_rms_norm_kernel_of(bool aligned, DataType dtype) noexcept {
  return serving_set_of(dtype).add_rms_norm[aligned ? 1 : 0];
}
const void* quantized_kernel_of(QuantizedPattern pattern, DataType dtype) noexcept {
  return serving_set_of(dtype).quantized[static_cast<int>(pattern)];
}
const void* message_kernel(bool many) noexcept {
  return many ? address(&messages_kernel<ManyMessages>) : address(&messages_kernel<FewMessages>);
}
const void* probe_kernel() noexcept { return address(&probe_pairs_kernel); }
const void* twin_kernel() noexcept { return address(&twin_meeting_kernel); }

std::vector<const void*> all_kernels() {
  std::vector<const void*> kernels{message_kernel(false), message_kernel(true),
                                   probe_kernel(),        twin_kernel(),
                                   meet_kernel(),         direct_kernel(Collective::kAllGather, Reducer::kAny)};
  for (const Reducer reducer : {Reducer::kSumF32, Reducer::kSumBf16, Reducer::kSumF16, Reducer::kAny}) {
    for (int size = 2; size <= device::kMaxRanks; ++size) kernels.push_back(uniform_kernel(true, reducer, size));
    kernels.push_back(plan_kernel_of(reducer));
    kernels.push_back(direct_kernel(Collective::kAllReduce, reducer));
    kernels.push_back(direct_kernel(Collective::kReduceScatter, reducer));
  }
  for (int size = 2; size <= device::kMaxRanks; ++size) {
    kernels.push_back(uniform_kernel(false, Reducer::kAny, size));
  }
  for (const Protocol protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kBulk}) {
    kernels.push_back(kernel_of(protocol, Pattern::kCopy, Reducer::kAny));
    for (const Pattern pattern : {Pattern::kReduce, Pattern::kTwoShot}) {
      for (const Reducer reducer : {Reducer::kSumF32, Reducer::kSumBf16, Reducer::kSumF16, Reducer::kAny}) {
        kernels.push_back(kernel_of(protocol, pattern, reducer));
      }
    }
  }
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16, DataType::kFloat32}) {
    for (const bool aligned : {false, true}) kernels.push_back(add_rms_norm_kernel_of(aligned, dtype));
    for (const int vectors : kNormVectors) kernels.push_back(norm_kernel_of(vectors, dtype));
    for (int pattern = 0; pattern < kQuantizedPatterns; ++pattern) {
      kernels.push_back(quantized_kernel_of(static_cast<QuantizedPattern>(pattern), dtype));
    }
  }
  return kernels;
}

}  // namespace tutti::cuda
