#include "algorithm/cuda/kernel_set.cuh"

namespace tutti::cuda {

KernelSet kernels_sum_f16() { return make_kernel_set<SumF16>(); }

}  // namespace tutti::cuda
