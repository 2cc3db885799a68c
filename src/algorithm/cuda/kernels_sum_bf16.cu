#include "algorithm/cuda/kernel_set.cuh"

namespace tutti::cuda {

KernelSet kernels_sum_bf16() { return make_kernel_set<SumBf16>(); }

}  // namespace tutti::cuda
