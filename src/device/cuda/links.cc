#include "device/cuda/links.h"

#include <cuda_runtime_api.h>

#include <string_view>

namespace tutti::cuda {

CudaReach reach_of(int from, int to) {
  int value = 0;
  if (from == to) return CudaReach::kAtomic;
  if (cudaDeviceCanAccessPeer(&value, from, to) != cudaSuccess || value == 0) {
    static_cast<void>(cudaGetLastError());
    return CudaReach::kNone;
  }
  if (cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrNativeAtomicSupported, from, to) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return CudaReach::kMapped;
  }
  return value != 0 ? CudaReach::kAtomic : CudaReach::kMapped;
}

bool has_native_atomics(int device, const std::string& uuid) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int other = 0; other < count; ++other) {
    cudaDeviceProp prop{};
    if (cudaGetDeviceProperties(&prop, other) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // else it would be taken for that of a later call
      continue;
    }
    if (std::string_view(prop.uuid.bytes, sizeof(prop.uuid.bytes)) == uuid) {
      return reach_of(device, other) == CudaReach::kAtomic;
    }
  }
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace tutti::cuda
