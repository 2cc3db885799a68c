#include "algorithm/cuda/kernel_set.cuh"

namespace tutti::cuda {

KernelSet kernels_sum_f32() { return make_kernel_set<SumF32>(); }

}  // namespace tutti::cuda
