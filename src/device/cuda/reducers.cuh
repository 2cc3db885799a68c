// How 16 bytes of every rank become 16 bytes of the result. A reducer has
//   own(v, spec)         what this rank contributes: its input, multiplied for kPremulSum
//   reduce(v, n, spec)   v[0] op ... op v[n-1], in rank order, one rounding at the end
#pragma once

#include "device/cuda/reduce_any.h"

namespace tutti::cuda {

using device::kMaxRanks;
using device::Vec16;

// Any dtype and operation; one function of its own, so that it is compiled once a file.
struct ReduceAny {
  TUTTI_DEVICE_CALL static Vec16 reduce(const Vec16* v, int n, const ReduceSpec& spec) {
    Vec16 out{{0, 0, 0, 0}};
    with_codec(spec.dtype, ReduceBody{v, n, spec, out});
    return out;
  }
  TUTTI_DEVICE_CALL static Vec16 own(const Vec16& v, const ReduceSpec& spec) {
    Vec16 out = v;
    if (spec.op == ReduceOp::kPremulSum) with_codec(spec.dtype, FactorBody{v, spec, out});
    return out;
  }
};

// Sums and averages of the common types, in registers. Unrolled over the largest group: v[r] must stay in registers.
template <class Lanes>
struct ReduceSum {
  TUTTI_DEVICE static Vec16 own(const Vec16& v, const ReduceSpec& /*spec*/) { return v; }
  TUTTI_DEVICE static Vec16 reduce(const Vec16* v, int n, const ReduceSpec& spec) {
    float acc[Lanes::kLanes];
    Lanes::unpack(v[0], acc);
    TUTTI_UNROLL
    for (int r = 1; r < kMaxRanks; ++r) {
      if (r < n) {
        float part[Lanes::kLanes];
        Lanes::unpack(v[r], part);
        TUTTI_UNROLL
        for (int i = 0; i < Lanes::kLanes; ++i) acc[i] += part[i];
      }
    }
    if (spec.op == ReduceOp::kAvg) {
      TUTTI_UNROLL
      for (int i = 0; i < Lanes::kLanes; ++i) acc[i] = acc[i] / static_cast<float>(spec.divisor);
    }
    return Lanes::pack(acc);
  }
};

struct F32Lanes {
  static constexpr int kLanes = 4;
  TUTTI_DEVICE static void unpack(const Vec16& v, float (&f)[4]) {
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) f[i] = float_of(v.w[i]);
  }
  TUTTI_DEVICE static Vec16 pack(const float (&f)[4]) {
    return {{bits_of(f[0]), bits_of(f[1]), bits_of(f[2]), bits_of(f[3])}};
  }
};

struct Bf16Lanes {
  static constexpr int kLanes = 8;
  TUTTI_DEVICE static void unpack(const Vec16& v, float (&f)[8]) {
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) {
      f[2 * i] = float_of(v.w[i] << 16);
      f[2 * i + 1] = float_of(v.w[i] & 0xffff0000u);
    }
  }
  TUTTI_DEVICE static Vec16 pack(const float (&f)[8]) {
    Vec16 v;
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) {
#if defined(__CUDA_ARCH__)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v.w[i]) : "f"(f[2 * i + 1]), "f"(f[2 * i]));
#else
      v.w[i] = Bf16::out(f[2 * i]) | static_cast<std::uint32_t>(Bf16::out(f[2 * i + 1])) << 16;
#endif
    }
    return v;
  }
};

struct F16Lanes {
  static constexpr int kLanes = 8;
  TUTTI_DEVICE static void unpack(const Vec16& v, float (&f)[8]) {
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const auto lo = static_cast<std::uint16_t>(v.w[i]), hi = static_cast<std::uint16_t>(v.w[i] >> 16);
#if defined(__CUDA_ARCH__)
      asm("cvt.f32.f16 %0, %1;" : "=f"(f[2 * i]) : "h"(lo));
      asm("cvt.f32.f16 %0, %1;" : "=f"(f[2 * i + 1]) : "h"(hi));
#else
      f[2 * i] = F16::in(lo);
      f[2 * i + 1] = F16::in(hi);
#endif
    }
  }
  TUTTI_DEVICE static Vec16 pack(const float (&f)[8]) {
    Vec16 v;
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) {
#if defined(__CUDA_ARCH__)
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v.w[i]) : "f"(f[2 * i + 1]), "f"(f[2 * i]));
#else
      v.w[i] = F16::out(f[2 * i]) | static_cast<std::uint32_t>(F16::out(f[2 * i + 1])) << 16;
#endif
    }
    return v;
  }
};

// v[rank] = own, without an index that is known at run time only: that would move the array out of the registers.
template <int N>
TUTTI_DEVICE void put_own(Vec16* v, int rank, const Vec16& own) {
  TUTTI_UNROLL
  for (int r = 0; r < N; ++r) {
    if (r == rank) v[r] = own;
  }
}

using SumF32 = ReduceSum<F32Lanes>;
using SumBf16 = ReduceSum<Bf16Lanes>;
using SumF16 = ReduceSum<F16Lanes>;

}  // namespace tutti::cuda
