// The kernels for inference engines, of one element type; each type has a file of its own, so that they compile apart.
#pragma once

#include "algorithm/cuda/add_rms_norm.cuh"
#include "algorithm/cuda/kernel_set.cuh"
#include "algorithm/cuda/quantized.cuh"

namespace tutti::cuda {

struct ServingKernelSet {
  const void* add_rms_norm[2];                // of any alignment, aligned
  const void* quantized[kQuantizedPatterns];  // by QuantizedPattern
};

#if defined(__CUDACC__)
template <bool kAligned, class Lanes>
__global__ void __launch_bounds__(kMostThreads)
    add_rms_norm_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ AddRmsNormArgs args) {
  __shared__ NormScratch scratch;
  add_rms_norm<kAligned, Lanes>(GridTeam{}, world, args, scratch);
}
template <QuantizedPattern kPattern, class Lanes>
__global__ void __launch_bounds__(kMostThreads)
    quantized_kernel(const __grid_constant__ DeviceWorld world, const __grid_constant__ QuantizedArgs args) {
  quantized_all_reduce<kPattern, Lanes>(GridTeam{}, world, args);
}

template <class Lanes>
ServingKernelSet make_serving_kernel_set() {
  const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  return {{address(&add_rms_norm_kernel<false, Lanes>), address(&add_rms_norm_kernel<true, Lanes>)},
          {address(&quantized_kernel<QuantizedPattern::kLL, Lanes>),
           address(&quantized_kernel<QuantizedPattern::kLLTwoShot, Lanes>),
           address(&quantized_kernel<QuantizedPattern::kBulk, Lanes>)}};
}
#endif

ServingKernelSet serving_kernels_bf16();
ServingKernelSet serving_kernels_f16();
ServingKernelSet serving_kernels_f32();

}  // namespace tutti::cuda
