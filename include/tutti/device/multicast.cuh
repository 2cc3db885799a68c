// One address for the memory of all ranks: stores that reach every rank, loads that sum over all.
//
// In software (SwitchChannel) over peer memory, on every machine. In hardware (NVLink multicast) only where the build
// sets TUTTI_MULTICAST=1: the instructions need a multicast object, which the host makes with cuMulticastCreate, and
// Tutti never does that by itself.
#pragma once

#include "tutti/device/tensor.cuh"

#if !defined(TUTTI_MULTICAST)
#define TUTTI_MULTICAST 0
#endif

namespace tutti::device {

struct SwitchChannel {
  int size = 1;
  std::byte* memory[kMaxRanks] = {};  // the same buffer of every rank, in rank order, mapped here

  // Stores 16 bytes at `offset` of every rank's buffer, lower ranks first.
  TUTTI_DEVICE void broadcast(std::size_t offset, const Vec16& v) const {
    for (int r = 0; r < size; ++r) *reinterpret_cast<Vec16*>(memory[r] + offset) = v;
  }
  // Sum of four floats at `offset` over all ranks, in rank order: every rank gets the same bits.
  TUTTI_DEVICE Vec16 reduce_f32(std::size_t offset) const {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int r = 0; r < size; ++r) {
      const auto* part = reinterpret_cast<const float*>(memory[r] + offset);
      TUTTI_UNROLL
      for (int i = 0; i < 4; ++i) sum[i] = r == 0 ? part[i] : sum[i] + part[i];
    }
    Vec16 v;
#if defined(__CUDA_ARCH__)
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) v.w[i] = __float_as_uint(sum[i]);
#else
    std::memcpy(&v, sum, sizeof(v));
#endif
    return v;
  }
};

#if TUTTI_MULTICAST && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The same on a multicast address. The switch adds in an order of its own choice.
__device__ __forceinline__ void multicast_store(void* p, const Vec16& v) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(p), "f"(__uint_as_float(v.w[0])),
               "f"(__uint_as_float(v.w[1])), "f"(__uint_as_float(v.w[2])), "f"(__uint_as_float(v.w[3]))
               : "memory");
}
__device__ __forceinline__ Vec16 multicast_sum_f32(const void* p) {
  float a, b, c, d;
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
               : "l"(p)
               : "memory");
  return {{__float_as_uint(a), __float_as_uint(b), __float_as_uint(c), __float_as_uint(d)}};
}
#endif

}  // namespace tutti::device
