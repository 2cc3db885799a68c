#include "algorithm/cuda/kernel_set.cuh"

namespace tutti::cuda {

KernelSet kernels_any() { return make_kernel_set<ReduceAny>(); }

}  // namespace tutti::cuda
