// Four floats as 8-bit codes in one word, and back: fp8 (e4m3fn, saturating) by the instructions of sm_89 and later
// where there are, else by the codec; signed integers by addition of a large number, which rounds to nearest even.
#pragma once

#include "device/cuda/number_codec.h"

namespace tutti::cuda {

// A product that is not contracted with a sum after it, so that host and device agree.
TUTTI_DEVICE float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

struct Fp8Code {
  static constexpr float kLargest = 448.0f;
  TUTTI_DEVICE static std::uint32_t out(const float* f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(f[1]), "f"(f[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(f[3]), "f"(f[2]));
    return low | static_cast<std::uint32_t>(high) << 16;
#else
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(E4M3fn::out(f[i])) << (8 * i);
    return word;
#endif
  }
  TUTTI_DEVICE static void in(std::uint32_t word, float* f) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    TUTTI_UNROLL
    for (int i = 0; i < 2; ++i) {
      std::uint32_t halves;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(word >> (16 * i))));
      asm("cvt.f32.f16 %0, %1;" : "=f"(f[2 * i]) : "h"(static_cast<std::uint16_t>(halves)));
      asm("cvt.f32.f16 %0, %1;" : "=f"(f[2 * i + 1]) : "h"(static_cast<std::uint16_t>(halves >> 16)));
    }
#else
    for (int i = 0; i < 4; ++i) f[i] = E4M3fn::in(static_cast<std::uint8_t>(word >> (8 * i)));
#endif
  }
};

struct Int8Code {
  static constexpr float kLargest = 127.0f;
  // |f| is at most about 127; a NaN becomes some code.
  TUTTI_DEVICE static std::uint32_t out(const float* f) {
    std::uint32_t word = 0;
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) {
      constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum's last bit is worth 1
      const float kept = f[i] > kLargest ? kLargest : f[i] < -kLargest ? -kLargest : f[i];
      word |= (bits_of(kept + kMagic) & 0xffu) << (8 * i);
    }
    return word;
  }
  TUTTI_DEVICE static void in(std::uint32_t word, float* f) {
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) f[i] = static_cast<float>(static_cast<std::int8_t>(word >> (8 * i)));
  }
};

}  // namespace tutti::cuda
