// Kernels of a user over include/tutti/device/device.cuh, compiled for every GPU that Tutti builds for, with hardware
// multicast in. Nothing runs: that it compiles is the test.
#include "tutti/device/device.cuh"

namespace tutti::test {
namespace {

__global__ void sum_over_all(device::SwitchChannel software, const float* multicast, float* output) {
  const device::Vec16 sum = software.reduce_f32(threadIdx.x * sizeof(device::Vec16));
  software.broadcast(threadIdx.x * sizeof(device::Vec16), sum);
#if __CUDA_ARCH__ >= 900
  device::multicast_store(output, device::multicast_sum_f32(multicast));
#endif
}

}  // namespace

void launch(const device::SwitchChannel& software, const float* multicast, float* output) {
  sum_over_all<<<1, 32>>>(software, multicast, output);
}

}  // namespace tutti::test
