// How elements get from memory into accumulators and back (see kernels_loop-inl.h). Included once per instruction set.
//
// Memory is always read and written as unsigned integers of the element's size: the float loads of some instruction
// sets assume an aligned float.

#if defined(TUTTI_DEVICE_CPU_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_DEVICE_CPU_KERNELS_LANES_INL_H_
#undef TUTTI_DEVICE_CPU_KERNELS_LANES_INL_H_
#else
#define TUTTI_DEVICE_CPU_KERNELS_LANES_INL_H_
#endif

#include "device/cpu/kernels_loop-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements that are their own accumulator.
template <typename T, std::size_t kCap>
struct PlainLane {
  using D = hn::CappedTag<T, kCap>;
  using Stored = hwy::MakeUnsigned<T>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = hn::MaxLanes(D());

  static HWY_INLINE Value load(const Stored* p) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(D(), hn::LoadU(du, p));
  }
  static HWY_INLINE void store(Value v, Stored* p) {
    const hn::RebindToUnsigned<D> du;
    hn::StoreU(hn::BitCast(du, v), du, p);
  }
};

// bool: anything but 0 counts as 1.
template <std::size_t kCap>
struct BoolLane : PlainLane<std::uint8_t, kCap> {
  using Base = PlainLane<std::uint8_t, kCap>;
  static HWY_INLINE typename Base::Value load(const std::uint8_t* p) {
    return hn::Min(Base::load(p), hn::Set(typename Base::D(), 1));
  }
};

// Rounds fp32 to its upper 16 bits, to nearest even; the lower 16 are left undefined.
//
// No test for NaN: the NaNs that come here are made by the machine, or were widened from bf16 and then passed through
// its arithmetic. Their low 16 bits are zero, so rounding can neither carry out of the mantissa nor end in infinity.
template <class D32, class V>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D32>> round_to_bf16(D32 /*d*/, V v) {
  const hn::RebindToUnsigned<D32> du;
  const auto bits = hn::BitCast(du, v);
  // Adds 0x7FFF, and one more if the upper half is odd; written as the subtraction of the negative, whose terms are
  // joined by one ternary instruction where the machine has it.
  const auto minus = hn::Xor(hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1)), hn::Set(du, 0xFFFF8001u));
  return hn::Sub(bits, minus);
}

// bf16, several at a time: even and odd elements are widened in place, without moving them across the vector.
template <std::size_t kCap>
struct Bf16Lane {
  using D16 = hn::CappedTag<std::uint16_t, kCap>;
  using D = hn::Repartition<float, D16>;
  using Stored = std::uint16_t;
  using Value = Pair<hn::Vec<D>>;
  static constexpr std::size_t kStep = hn::MaxLanes(D16());

  static HWY_INLINE Value load(const Stored* p) {
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::BitCast(du, hn::LoadU(D16(), p));
    return {hn::BitCast(D(), hn::ShiftLeft<16>(both)), hn::BitCast(D(), hn::And(both, hn::Set(du, 0xFFFF0000u)))};
  }
  static HWY_INLINE void store(Value v, Stored* p) {
    const D16 d16;
    const auto even = hn::ShiftRight<16>(round_to_bf16(D(), v.even));
    const auto odd = round_to_bf16(D(), v.odd);
    hn::StoreU(hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, even)), d16, p);
  }
};

// bf16, one at a time.
struct Bf16Single {
  using D = hn::CappedTag<float, 1>;
  using Stored = std::uint16_t;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = 1;

  static HWY_INLINE Value load(const Stored* p) {
    std::uint16_t code;
    hwy::CopyBytes<sizeof(code)>(p, &code);
    return hn::BitCast(D(), hn::Set(hn::RebindToUnsigned<D>(), static_cast<std::uint32_t>(code) << 16));
  }
  static HWY_INLINE void store(Value v, Stored* p) {
    const auto code = static_cast<std::uint16_t>(hn::GetLane(round_to_bf16(D(), v)) >> 16);
    hwy::CopyBytes<sizeof(code)>(&code, p);
  }
};

// Elements narrower than 32 bits whose accumulator is one fp32 vector of as many lanes. Codec widens and narrows.
template <class Codec, std::size_t kCap>
struct WidenedLane {
  using D = hn::CappedTag<float, kCap>;
  using Stored = typename Codec::Stored;
  using DStored = hn::Rebind<Stored, D>;
  using Value = hn::Vec<D>;
  static constexpr std::size_t kStep = hn::MaxLanes(D());

  static HWY_INLINE Value load(const Stored* p) { return Codec::widen(D(), hn::LoadU(DStored(), p)); }
  static HWY_INLINE void store(Value v, Stored* p) { hn::StoreU(Codec::narrow(D(), v), DStored(), p); }
};

// The three widths of each family of types. kScalars: scalars an element (2 for complex); kCommon: worth loops of its
// own for the commonest shapes.
template <typename T, std::size_t kScalarsOfElement, bool kIsCommon>
struct PlainType {
  using Wide = PlainLane<T, HWY_LANES(T)>;
  using Narrow = PlainLane<T, 16 / sizeof(T)>;
  using Single = PlainLane<T, kScalarsOfElement>;
  static constexpr std::size_t kScalars = kScalarsOfElement;
  static constexpr bool kCommon = kIsCommon;
  static constexpr int kUnroll = 4;
};
struct BoolType {
  using Wide = BoolLane<HWY_LANES(std::uint8_t)>;
  using Narrow = BoolLane<16>;
  using Single = BoolLane<1>;
  static constexpr std::size_t kScalars = 1;
  static constexpr bool kCommon = false;
  static constexpr int kUnroll = 4;
};
struct Bf16Type {
  using Wide = Bf16Lane<HWY_LANES(std::uint16_t)>;
  using Narrow = Bf16Lane<8>;
  using Single = Bf16Single;
  static constexpr std::size_t kScalars = 1;
  static constexpr bool kCommon = true;
  static constexpr int kUnroll = 2;
};
// A codec made of many instructions gains nothing from more copies of its loop.
template <class Codec, std::size_t kScalarsOfElement>
struct WidenedType {
  using Wide = WidenedLane<Codec, HWY_LANES(float)>;
  using Narrow = WidenedLane<Codec, 4>;
  using Single = WidenedLane<Codec, kScalarsOfElement>;
  static constexpr std::size_t kScalars = kScalarsOfElement;
  static constexpr bool kCommon = Codec::kNative && kScalars == 1;
  static constexpr int kUnroll = Codec::kNative ? 4 : 1;
};

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
