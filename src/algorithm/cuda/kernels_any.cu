#include "algorithm/cuda/kernel_set.cuh"

namespace tutti::cuda {

KernelSet kernels_any() {
  KernelSet set{};
  add_packet_kernels<ReduceAny>(set);
  add_bulk_kernels_any(set);
  return set;
}

}  // namespace tutti::cuda
