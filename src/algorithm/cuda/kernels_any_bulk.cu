#include "algorithm/cuda/kernel_set.cuh"

namespace tutti::cuda {

void add_bulk_kernels_any(KernelSet& set) { add_bulk_kernels<ReduceAny>(set); }

}  // namespace tutti::cuda
