// The kernels of one reducer. Each reducer has a file of its own, and the one that takes the compiler longest has two:
// they compile apart.
#pragma once

#include "algorithm/cuda/bulk.cuh"
#include "algorithm/cuda/choice.h"
#include "algorithm/cuda/direct.cuh"
#include "algorithm/cuda/ll.cuh"
#include "algorithm/cuda/ll128.cuh"
#include "algorithm/cuda/ll_uniform.cuh"
#include "algorithm/cuda/plan_kernel.cuh"

namespace tutti::cuda {

inline constexpr int kMostThreads = 512 + kControlThreads;

struct KernelSet {
  const void* reduce[3];  // by Protocol
  const void* two_shot[3];
  const void* ll_uniform[device::kMaxRanks + 1];  // by size of the group, from 2
  const void* direct_all_reduce;
  const void* direct_reduce_scatter;
  const void* plan;
};

#if defined(__CUDACC__)
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll_reduce_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  await_preceding();
  ll_reduce<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll128_reduce_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  await_preceding();
  ll128_reduce<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    bulk_reduce_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  bulk_reduce<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll_two_shot_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ TwoShotArgs args) {
  await_preceding();
  ll_two_shot<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll128_two_shot_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ TwoShotArgs args) {
  await_preceding();
  ll128_two_shot<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    bulk_two_shot_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ TwoShotArgs args) {
  bulk_two_shot<R>(GridTeam{}, world, args);
}

// Its blocks need no second one beside them on their multiprocessor: without saying so, ptxas saves registers for one
// in the kernel for two ranks, and spills.
template <class R, int N>
__global__ void __launch_bounds__(kMostThreads, 1)
    ll_uniform_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ UniformArgs args) {
  await_preceding();
  ll_uniform_reduce<R, N>(GridTeam{}, world, args);
}

template <class R>
__global__ void __launch_bounds__(kMostThreads)
    direct_all_reduce_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ DirectArgs args) {
  direct_all_reduce<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    direct_reduce_scatter_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ DirectArgs args) {
  direct_reduce_scatter<R>(GridTeam{}, world, args);
}

// Bounds as of ll_uniform_kernel(): it would spill three times as much.
template <class R>
__global__ void __launch_bounds__(kMostThreads, 1)
    plan_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ PlanArgs args) {
  run_plan<R>(ClusterTeam<0>{}, world, args);
}

template <class Kernel>
const void* address_of(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}
template <class R, int N = 2>
void add_uniform_kernels(KernelSet& set) {
  set.ll_uniform[N] = address_of(&ll_uniform_kernel<R, N>);
  if constexpr (N < device::kMaxRanks) add_uniform_kernels<R, N + 1>(set);
}
template <class R>
void add_packet_kernels(KernelSet& set) {
  set.reduce[static_cast<int>(Protocol::kLL)] = address_of(&ll_reduce_kernel<R>);
  set.reduce[static_cast<int>(Protocol::kLL128)] = address_of(&ll128_reduce_kernel<R>);
  set.two_shot[static_cast<int>(Protocol::kLL)] = address_of(&ll_two_shot_kernel<R>);
  set.two_shot[static_cast<int>(Protocol::kLL128)] = address_of(&ll128_two_shot_kernel<R>);
  add_uniform_kernels<R>(set);
}
template <class R>
void add_bulk_kernels(KernelSet& set) {
  set.reduce[static_cast<int>(Protocol::kBulk)] = address_of(&bulk_reduce_kernel<R>);
  set.two_shot[static_cast<int>(Protocol::kBulk)] = address_of(&bulk_two_shot_kernel<R>);
  set.direct_all_reduce = address_of(&direct_all_reduce_kernel<R>);
  set.direct_reduce_scatter = address_of(&direct_reduce_scatter_kernel<R>);
  set.plan = address_of(&plan_kernel<R>);
}
template <class R>
KernelSet make_kernel_set() {
  KernelSet set{};
  add_packet_kernels<R>(set);
  add_bulk_kernels<R>(set);
  return set;
}
#endif

KernelSet kernels_sum_f32();
KernelSet kernels_sum_bf16();
KernelSet kernels_sum_f16();
KernelSet kernels_any();
void add_bulk_kernels_any(KernelSet& set);  // for kernels_any()

}  // namespace tutti::cuda
