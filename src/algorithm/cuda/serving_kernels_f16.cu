#include "algorithm/cuda/serving_kernel_set.cuh"

namespace tutti::cuda {

ServingKernelSet serving_kernels_f16() { return make_serving_kernel_set<F16Lanes>(); }

}  // namespace tutti::cuda
