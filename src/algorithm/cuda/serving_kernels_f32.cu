#include "algorithm/cuda/serving_kernel_set.cuh"

namespace tutti::cuda {

ServingKernelSet serving_kernels_f32() { return make_serving_kernel_set<F32Lanes>(); }

}  // namespace tutti::cuda
