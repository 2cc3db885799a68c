// The kernel that follows an all-reduce: addition of a residual and RMS norm of the sums. It waits for no other rank.
#include "algorithm/cuda/kernels.h"
#include "algorithm/cuda/norm_rows.cuh"

namespace tutti::cuda {
namespace {

// All threads are workers: there is no header and no signal to look after.
struct NormTeam {
  static constexpr bool kOnDevice = true;
  __device__ __forceinline__ int block() const { return static_cast<int>(blockIdx.x); }
  __device__ __forceinline__ int workers() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ int worker() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ void sync_workers() const { __syncthreads(); }
};

template <int kVectors, class Lanes>
__global__ void __launch_bounds__(kNormThreads) add_and_norm_kernel(const __grid_constant__ AddRmsNormArgs args) {
  __shared__ NormScratch scratch;
  add_and_norm<kVectors, Lanes>(NormTeam{}, args, scratch);
}

template <class Lanes>
const void* kernel_of(int vectors) noexcept {
  const auto address = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  if (vectors == 1) return address(&add_and_norm_kernel<1, Lanes>);
  if (vectors == 2) return address(&add_and_norm_kernel<2, Lanes>);
  if (vectors == 4) return address(&add_and_norm_kernel<4, Lanes>);
  return address(&add_and_norm_kernel<0, Lanes>);
}

}  // namespace

const void* norm_kernel_of(int vectors, DataType dtype) noexcept {
  if (dtype == DataType::kBfloat16) return kernel_of<Bf16Lanes>(vectors);
  if (dtype == DataType::kFloat16) return kernel_of<F16Lanes>(vectors);
  return kernel_of<F32Lanes>(vectors);
}

}  // namespace tutti::cuda
