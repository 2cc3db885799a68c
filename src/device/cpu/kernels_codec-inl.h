// Conversion between fp32 and the floats of 8 and 16 bits, as PyTorch's casts do it: to nearest even, a NaN stays a
// NaN. Included once per instruction set.

#if defined(TUTTI_DEVICE_CPU_KERNELS_CODEC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_DEVICE_CPU_KERNELS_CODEC_INL_H_
#undef TUTTI_DEVICE_CPU_KERNELS_CODEC_INL_H_
#else
#define TUTTI_DEVICE_CPU_KERNELS_CODEC_INL_H_
#endif

#include <type_traits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What the codes beyond the finite numbers mean.
enum class Special {
  kInfinity,      // IEEE: the top exponent holds infinity and the NaNs; overflow gives infinity
  kSaturate,      // "fn": no infinity, one NaN (all ones) of each sign; overflow gives the largest number
  kUnsignedZero,  // "fnuz": the code of minus zero is the only NaN; overflow gives it
};

// A float with kExponent and kMantissa bits and exponent bias kBias, in 32-bit lanes.
template <typename S, int kExponent, int kMantissa, int kBias, Special kSpecial>
struct FloatCodec {
  using Stored = S;
  static constexpr bool kNative = false;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr std::int32_t kSignBit = 1 << (kExponent + kMantissa);
  static constexpr std::int32_t kMagnitude = kSignBit - 1;
  static constexpr std::int32_t kInfinityCode = ((1 << kExponent) - 1) << kMantissa;
  // What an overflow gives, and what a NaN gives.
  static constexpr std::int32_t kLargest = kSpecial == Special::kInfinity   ? kInfinityCode
                                           : kSpecial == Special::kSaturate ? kMagnitude - 1
                                                                            : kMagnitude;
  static constexpr std::int32_t kNan = kSpecial == Special::kInfinity   ? kInfinityCode | (1 << (kMantissa - 1))
                                       : kSpecial == Special::kSaturate ? kMagnitude
                                                                        : kSignBit;
  static constexpr std::int32_t kInfinity32 = 0x7F800000;

  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D d, V stored) {
    const hn::RebindToSigned<D> di;
    const auto code = hn::PromoteTo(di, stored);
    const auto magnitude = hn::And(code, hn::Set(di, kMagnitude));
    const auto shifted = hn::ShiftLeft<kShift>(magnitude);
    auto bits = hn::Add(shifted, hn::Set(di, (127 - kBias) << 23));
    // Subnormal: the mantissa is an integer of the smallest steps. Multiplying it needs no fp32 subnormal, which a
    // thread may have told its processor to flush.
    constexpr float kStep = power_of_two(1 - kBias - kMantissa);
    const auto tiny = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, kStep));
    bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 1 << kMantissa)), hn::BitCast(di, tiny), bits);
    const auto sign = hn::ShiftLeft<31 - kExponent - kMantissa>(hn::And(code, hn::Set(di, kSignBit)));
    const auto top = hn::Set(di, kInfinity32);
    if constexpr (kSpecial == Special::kInfinity) {
      bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kInfinityCode - 1)), hn::Or(shifted, top), bits);
    } else {
      const auto is_nan = hn::Eq(kSpecial == Special::kSaturate ? magnitude : code, hn::Set(di, kNan));
      bits = hn::IfThenElse(is_nan, hn::Set(di, 0x7FC00000), bits);
    }
    return hn::BitCast(d, hn::Or(bits, sign));
  }

  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Rebind<S, D>> narrow(D d, V v) {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto sign = hn::And(hn::BitCast(di, hn::ShiftRight<31 - kExponent - kMantissa>(bits)), hn::Set(di, kSignBit));
    // Half a step less one, and one more if the result would be odd: ties go to even.
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(du, 1));
    const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, (1u << (kShift - 1)) - 1)), odd);
    auto code = hn::Sub(hn::BitCast(di, hn::ShiftRight<kShift>(rounded)), hn::Set(di, (127 - kBias) << kMantissa));
    // Below the normal range an addition does the rounding: the sum's last bit is the smallest step.
    const auto magic = hn::Set(d, power_of_two(24 - kMantissa - kBias));
    const auto sum = hn::Add(hn::BitCast(d, magnitude), magic);
    const auto tiny = hn::Sub(hn::BitCast(di, sum), hn::BitCast(di, magic));
    const auto magnitude_i = hn::BitCast(di, magnitude);
    code = hn::IfThenElse(hn::Lt(magnitude_i, hn::Set(di, (128 - kBias) << 23)), tiny, code);
    const auto is_nan = hn::Gt(magnitude_i, hn::Set(di, kInfinity32));
    const auto nan = hn::Set(di, kNan);
    if constexpr (kSpecial == Special::kUnsignedZero) {
      const auto is_zero = hn::Eq(code, hn::Zero(di));
      const auto overflows = hn::Gt(code, hn::Set(di, kLargest));
      code = hn::IfThenElse(hn::Or(is_nan, overflows), nan, hn::Or(code, hn::IfThenZeroElse(is_zero, sign)));
    } else {
      code = hn::IfThenElse(is_nan, nan, hn::Or(hn::Min(code, hn::Set(di, kLargest)), sign));
    }
    return hn::DemoteTo(hn::Rebind<S, D>(), code);
  }

 private:
  static constexpr float power_of_two(int exponent) {
    float p = 1.0f;
    for (; exponent > 0; --exponent) p *= 2.0f;
    for (; exponent < 0; ++exponent) p /= 2.0f;
    return p;
  }
};

using E4M3fn = FloatCodec<std::uint8_t, 4, 3, 7, Special::kSaturate>;
using E5M2 = FloatCodec<std::uint8_t, 5, 2, 15, Special::kInfinity>;
using E4M3fnuz = FloatCodec<std::uint8_t, 4, 3, 8, Special::kUnsignedZero>;
using E5M2fnuz = FloatCodec<std::uint8_t, 5, 2, 16, Special::kUnsignedZero>;

// Powers of two without a sign. Widening 0 gives 2^-127, an fp32 subnormal. Narrowing ignores the sign and takes the
// nearest, ties up; all that lies between the two smallest codes goes up. PyTorch's rule.
struct E8M0fnu {
  using Stored = std::uint8_t;
  static constexpr bool kNative = false;

  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D d, V stored) {
    const hn::RebindToSigned<D> di;
    const auto code = hn::PromoteTo(di, stored);
    auto bits = hn::ShiftLeft<23>(code);
    bits = hn::IfThenElse(hn::Eq(code, hn::Zero(di)), hn::Set(di, 0x00400000), bits);
    bits = hn::IfThenElse(hn::Eq(code, hn::Set(di, 0xFF)), hn::Set(di, 0x7FC00000), bits);
    return hn::BitCast(d, bits);
  }

  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint8_t, D>> narrow(D d, V v) {
    const hn::RebindToSigned<D> di;
    const auto magnitude = hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF));
    auto code = hn::ShiftRight<23>(hn::Add(magnitude, hn::Set(di, 0x00400000)));
    // Among the subnormals 2^-127 is exact and only what is above it goes up.
    code = hn::IfThenElse(hn::Eq(magnitude, hn::Set(di, 0x00400000)), hn::Zero(di), code);
    code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x7F800000)), code, hn::Set(di, 0xFF));
    static_cast<void>(d);
    return hn::DemoteTo(hn::Rebind<std::uint8_t, D>(), code);
  }
};

// fp16, by the machine where it does it right, else by bits.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
struct F16 {
  using Stored = std::uint16_t;
  static constexpr bool kNative = true;

  template <class D, class V>
  static HWY_INLINE hn::Vec<D> widen(D d, V stored) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), stored));
  }
  template <class D, class V>
  static HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> narrow(D /*d*/, V v) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::BitCast(hn::Rebind<std::uint16_t, D>(), hn::DemoteTo(d16, v));
  }
};
#else
using F16 = FloatCodec<std::uint16_t, 5, 10, 15, Special::kInfinity>;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
