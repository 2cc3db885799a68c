// The kernels of one reducer; each reducer has a file of its own, so that they compile apart.
#pragma once

#include "algorithm/cuda/bulk.cuh"
#include "algorithm/cuda/direct.cuh"
#include "algorithm/cuda/ll.cuh"
#include "algorithm/cuda/ll128.cuh"
#include "algorithm/cuda/ll_uniform.cuh"
#include "algorithm/cuda/plan_call.cuh"

namespace tutti::cuda {

inline constexpr int kMostThreads = 512 + kControlThreads;

struct KernelSet {
  const void* reduce[3];  // by Protocol
  const void* two_shot[3];
  const void* ll_uniform;
  const void* direct_all_reduce;
  const void* direct_reduce_scatter;
  const void* plan;
};

#if defined(__CUDACC__)
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll_reduce_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
  ll_reduce<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll128_reduce_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ ExchangeArgs args) {
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
  ll_two_shot<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll128_two_shot_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ TwoShotArgs args) {
  ll128_two_shot<R>(GridTeam{}, world, args);
}
template <class R>
__global__ void __launch_bounds__(kMostThreads)
    bulk_two_shot_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ TwoShotArgs args) {
  bulk_two_shot<R>(GridTeam{}, world, args);
}

template <class R>
__global__ void __launch_bounds__(kMostThreads)
    ll_uniform_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ UniformArgs args) {
  ll_uniform_reduce<R>(GridTeam{}, world, args);
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

template <class R>
__global__ void __launch_bounds__(kMostThreads)
    plan_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ PlanArgs args) {
  run_plan<R>(GridTeam{}, world, args);
}

template <class R>
KernelSet make_kernel_set() {
  const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  return {{address(&ll_reduce_kernel<R>), address(&ll128_reduce_kernel<R>), address(&bulk_reduce_kernel<R>)},
          {address(&ll_two_shot_kernel<R>), address(&ll128_two_shot_kernel<R>), address(&bulk_two_shot_kernel<R>)},
          address(&ll_uniform_kernel<R>),
          address(&direct_all_reduce_kernel<R>),
          address(&direct_reduce_scatter_kernel<R>),
          address(&plan_kernel<R>)};
}
#endif

KernelSet kernels_sum_f32();
KernelSet kernels_sum_bf16();
KernelSet kernels_sum_f16();
KernelSet kernels_any();

}  // namespace tutti::cuda
