#include "algorithm/cuda/serving_kernel_set.cuh"

namespace tutti::cuda {

ServingKernelSet serving_kernels_bf16() { return make_serving_kernel_set<Bf16Lanes>(); }

}  // namespace tutti::cuda
