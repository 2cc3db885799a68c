// Element types as kernels compute with them: how each is read into its accumulator and written back. Plain C++ for
// device and host; conversions give the bits that the CPU's kernels give (PyTorch's casts: to nearest even).
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tutti/device/tensor.cuh"

namespace tutti::cuda {

TUTTI_DEVICE std::uint32_t bits_of(float f) {
  std::uint32_t b;
  memcpy(&b, &f, 4);
  return b;
}
TUTTI_DEVICE float float_of(std::uint32_t b) {
  float f;
  memcpy(&f, &b, 4);
  return f;
}

// What the codes beyond the finite numbers mean.
enum class Special {
  kInfinity,      // IEEE; overflow gives infinity
  kSaturate,      // "fn": no infinity, all ones is NaN; overflow gives the largest number
  kUnsignedZero,  // "fnuz": the code of minus zero is the only NaN; overflow gives it
};

// A float with kExponent and kMantissa bits and exponent bias kBias; sums are in fp32.
template <typename S, int kExponent, int kMantissa, int kBias, Special kSpecial>
struct NarrowFloat {
  using Stored = S;
  using Value = float;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr std::uint32_t kSign = 1u << (kExponent + kMantissa);
  static constexpr std::uint32_t kMagnitude = kSign - 1;
  static constexpr std::uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr std::uint32_t kLargest = kSpecial == Special::kInfinity   ? kInfinity
                                            : kSpecial == Special::kSaturate ? kMagnitude - 1
                                                                             : kMagnitude;
  static constexpr std::uint32_t kNan = kSpecial == Special::kInfinity   ? kInfinity | (1u << (kMantissa - 1))
                                        : kSpecial == Special::kSaturate ? kMagnitude
                                                                         : kSign;

  TUTTI_DEVICE static float in(S stored) {
    const std::uint32_t code = stored;
    const std::uint32_t magnitude = code & kMagnitude;
    const std::uint32_t sign = (code & kSign) << (31 - kExponent - kMantissa);
    if (kSpecial == Special::kInfinity && magnitude >= kInfinity) {
      return float_of(sign | 0x7F800000u | magnitude << kShift);
    }
    if (kSpecial == Special::kSaturate && magnitude == kNan) return float_of(0x7FC00000u | sign);
    if (kSpecial == Special::kUnsignedZero && code == kNan) return float_of(0x7FC00000u);
    if (magnitude < (1u << kMantissa)) {
      // Subnormal: an integer of the smallest steps.
      return float_of(bits_of(static_cast<float>(magnitude) * power_of_two(1 - kBias - kMantissa)) | sign);
    }
    return float_of(((magnitude << kShift) + (static_cast<std::uint32_t>(127 - kBias) << 23)) | sign);
  }

  TUTTI_DEVICE static S out(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t sign = bits >> (31 - kExponent - kMantissa) & kSign;
    if (magnitude > 0x7F800000u) return static_cast<S>(kNan);
    std::uint32_t code;
    if (magnitude < (static_cast<std::uint32_t>(128 - kBias) << 23)) {
      // Below the normal range an addition does the rounding: the sum's last bit is the smallest step.
      const float magic = power_of_two(24 - kMantissa - kBias);
      code = bits_of(float_of(magnitude) + magic) - bits_of(magic);
    } else {
      const std::uint32_t odd = magnitude >> kShift & 1;
      code = ((magnitude + (1u << (kShift - 1)) - 1 + odd) >> kShift) -
             (static_cast<std::uint32_t>(127 - kBias) << kMantissa);
    }
    if (kSpecial == Special::kUnsignedZero) {
      if (code == 0) return 0;
      return static_cast<S>(code > kLargest ? kNan : code | sign);
    }
    return static_cast<S>((code > kLargest ? kLargest : code) | sign);
  }

 private:
  TUTTI_DEVICE static float power_of_two(int exponent) {
    float p = 1.0f;
    for (; exponent > 0; --exponent) p *= 2.0f;
    for (; exponent < 0; ++exponent) p *= 0.5f;
    return p;
  }
};

using E4M3fn = NarrowFloat<std::uint8_t, 4, 3, 7, Special::kSaturate>;
using E5M2 = NarrowFloat<std::uint8_t, 5, 2, 15, Special::kInfinity>;
using E4M3fnuz = NarrowFloat<std::uint8_t, 4, 3, 8, Special::kUnsignedZero>;
using E5M2fnuz = NarrowFloat<std::uint8_t, 5, 2, 16, Special::kUnsignedZero>;
using F16 = NarrowFloat<std::uint16_t, 5, 10, 15, Special::kInfinity>;

// The upper half of an fp32: there its subnormals are subnormal too, so the addition above would round twice.
struct Bf16 {
  using Stored = std::uint16_t;
  using Value = float;
  TUTTI_DEVICE static float in(std::uint16_t s) { return float_of(static_cast<std::uint32_t>(s) << 16); }
  TUTTI_DEVICE static std::uint16_t out(float v) {
    const std::uint32_t bits = bits_of(v);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
    return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
  }
};

// Powers of two without a sign: nearest, ties up; what lies between the two smallest codes goes up. PyTorch's rule.
struct E8M0fnu {
  using Stored = std::uint8_t;
  using Value = float;
  TUTTI_DEVICE static float in(std::uint8_t s) {
    return float_of(s == 0xFF ? 0x7FC00000u : s == 0 ? 0x00400000u : static_cast<std::uint32_t>(s) << 23);
  }
  TUTTI_DEVICE static std::uint8_t out(float v) {
    const std::uint32_t magnitude = bits_of(v) & 0x7FFFFFFFu;
    if (magnitude >= 0x7F800000u) return 0xFF;
    if (magnitude <= 0x00400000u) return 0;
    return static_cast<std::uint8_t>((magnitude + 0x00400000u) >> 23);
  }
};

template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  TUTTI_DEVICE static T in(T s) { return s; }
  TUTTI_DEVICE static T out(T v) { return v; }
};
struct Boolean {
  using Stored = std::uint8_t;
  using Value = bool;
  TUTTI_DEVICE static bool in(std::uint8_t s) { return s != 0; }
  TUTTI_DEVICE static std::uint8_t out(bool v) { return v ? 1 : 0; }
};

}  // namespace tutti::cuda
