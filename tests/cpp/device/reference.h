// What the kernels must compute, written plainly: one element at a time, conversions by arithmetic in double instead of
// bit tricks, so that it shares no idea (and no mistake) with src/device/cpu.
//
// Ownership: none, pure functions. Thread rule: freely callable.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tutti/types.h"

namespace tutti::reference {

// What a value beyond the largest finite one becomes.
enum class Overflow { kInfinity, kSaturate, kNan };

// A float narrower than 32 bits: `exponent` and `mantissa` bits, exponent bias, overflow rule as PyTorch's casts have
// it. `unsigned_zero`: the "fnuz" formats, whose only NaN is the code of minus zero.
struct Format {
  int bits;
  int exponent;
  int mantissa;
  int bias;
  double max;
  Overflow overflow;
  std::uint32_t nan;  // code written for a NaN
  bool unsigned_zero;
};

inline constexpr Format kBf16{16, 8, 7, 127, 0x1.FEp127, Overflow::kInfinity, 0x7FC0, false};
inline constexpr Format kF16{16, 5, 10, 15, 65504.0, Overflow::kInfinity, 0x7E00, false};
inline constexpr Format kE4M3fn{8, 4, 3, 7, 448.0, Overflow::kSaturate, 0x7F, false};
inline constexpr Format kE5M2{8, 5, 2, 15, 57344.0, Overflow::kInfinity, 0x7F, false};
inline constexpr Format kE4M3fnuz{8, 4, 3, 8, 240.0, Overflow::kNan, 0x80, true};
inline constexpr Format kE5M2fnuz{8, 5, 2, 16, 57344.0, Overflow::kNan, 0x80, true};

inline bool is_nan_code(const Format& f, std::uint32_t code) {
  if (f.unsigned_zero) return code == f.nan;
  const std::uint32_t magnitude = code & ((1u << (f.bits - 1)) - 1);
  if (f.overflow == Overflow::kSaturate) return magnitude == f.nan;
  return magnitude > (((1u << f.exponent) - 1) << f.mantissa);
}

inline double decode(const Format& f, std::uint32_t code) {
  if (is_nan_code(f, code)) return std::numeric_limits<double>::quiet_NaN();
  const double sign = (code >> (f.bits - 1)) != 0 ? -1.0 : 1.0;
  const std::uint32_t m = code & ((1u << f.mantissa) - 1);
  const std::uint32_t e = (code >> f.mantissa) & ((1u << f.exponent) - 1);
  if (f.overflow == Overflow::kInfinity && e == (1u << f.exponent) - 1) return sign * INFINITY;
  if (e == 0) return sign * std::ldexp(m, 1 - f.bias - f.mantissa);
  return sign * std::ldexp(m + (1u << f.mantissa), static_cast<int>(e) - f.bias - f.mantissa);
}

inline std::uint32_t encode(const Format& f, float x) {
  if (std::isnan(x)) return f.nan;
  const std::uint32_t sign = std::signbit(x) ? 1u << (f.bits - 1) : 0;
  const double a = std::fabs(static_cast<double>(x));
  const auto infinity = ((1u << f.exponent) - 1) << f.mantissa;
  int e = a == 0.0 || std::isinf(a) ? 1 - f.bias : std::ilogb(a);
  if (e < 1 - f.bias) e = 1 - f.bias;
  // Steps of the format at this size; nearbyint rounds to nearest even.
  double steps = std::isinf(a) ? a : std::nearbyint(std::ldexp(a, f.mantissa - e));
  const double rounded = std::ldexp(steps, e - f.mantissa);
  if (rounded > f.max) {
    if (f.overflow == Overflow::kInfinity) return sign | infinity;
    if (f.overflow == Overflow::kNan) return f.nan;
    steps = std::ldexp(f.max, f.mantissa - (e = std::ilogb(f.max)));
  }
  // A carry to the next power of two is right by itself: the mantissa overflows into the exponent.
  const auto code = static_cast<std::uint32_t>(static_cast<std::int64_t>(steps)) +
                    (static_cast<std::uint32_t>(e + f.bias - 1) << f.mantissa);
  if (code == 0 && f.unsigned_zero) return 0;
  return sign | code;
}

// Powers of two without a sign: nearest, ties up, sign ignored; all between the two smallest codes goes up. As PyTorch.
inline float decode_e8m0(std::uint32_t code) {
  return code == 0xFF ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, static_cast<int>(code) - 127);
}
inline std::uint32_t encode_e8m0(float x) {
  if (!std::isfinite(x)) return 0xFF;
  const double a = std::fabs(static_cast<double>(x));
  if (a <= 0x1p-127) return 0;
  if (a < 0x1p-126) return 1;
  const int e = std::ilogb(a);
  return static_cast<std::uint32_t>((a >= std::ldexp(1.5, e) ? e + 1 : e) + 127);
}

}  // namespace tutti::reference
