// The operations of a reduction on vectors. Included once per instruction set.

#if defined(TUTTI_DEVICE_CPU_KERNELS_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_DEVICE_CPU_KERNELS_OPS_INL_H_
#undef TUTTI_DEVICE_CPU_KERNELS_OPS_INL_H_
#else
#define TUTTI_DEVICE_CPU_KERNELS_OPS_INL_H_
#endif

#include "device/cpu/kernel_table.h"
#include "device/cpu/kernels_loop-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Add(a, b);
  }
};

// No instruction set multiplies bytes: even and odd bytes as 16-bit products, of which the low byte is right.
template <class D, class V>
HWY_INLINE V multiply_bytes(D d, V a, V b) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::Set(d, static_cast<std::uint8_t>(hn::GetLane(a) * hn::GetLane(b)));
  } else {
    const hn::Repartition<std::uint16_t, D> d16;
    const auto a16 = hn::BitCast(d16, a);
    const auto b16 = hn::BitCast(d16, b);
    const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, 0x00FF));
    const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16)));
    return hn::BitCast(d, hn::Or(even, odd));
  }
}

struct Product {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V a, V b) {
    if constexpr (sizeof(hn::TFromD<D>) == 1) {
      return multiply_bytes(d, a, b);
    } else {
      return hn::Mul(a, b);
    }
  }
};

// (a+bi)(c+di) with real and imaginary parts side by side.
struct ComplexProduct {
  template <class D, class V>
  static HWY_INLINE V apply(D d, V a, V b) {
    const V x = hn::Mul(hn::DupEven(a), b);                  // ac, ad
    const V y = hn::Mul(hn::DupOdd(a), hn::Reverse2(d, b));  // bd, bc
    return hn::OddEven(hn::Add(x, y), hn::Sub(x, y));
  }
};

// Comparisons instead of the machine's min and max, which differ between machines in NaN and signed zeros. A NaN on
// either side comes through; of equal values the later one is taken.
struct FloatMin {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};
struct FloatMax {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(a)), a, b);
  }
};

struct IntegerMin {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Min(a, b);
  }
};
struct IntegerMax {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Max(a, b);
  }
};
struct BitAnd {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::And(a, b);
  }
};
struct BitOr {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Or(a, b);
  }
};
struct BitXor {
  template <class D, class V>
  static HWY_INLINE V apply(D /*d*/, V a, V b) {
    return hn::Xor(a, b);
  }
};

// Enter the kernels of a floating-point type and of a complex type into a table.
template <class Type>
void fill_real(KernelTable& table, DataType t) {
  table.at(t, ReduceOp::kSum) = reduce_kernel<Type, Sum, Keep>;
  table.at(t, ReduceOp::kPremulSum) = reduce_kernel<Type, Sum, Keep>;
  table.at(t, ReduceOp::kAvg) = reduce_kernel<Type, Sum, Divide>;
  table.at(t, ReduceOp::kProduct) = reduce_kernel<Type, Product, Keep>;
  table.at(t, ReduceOp::kMin) = reduce_kernel<Type, FloatMin, Keep>;
  table.at(t, ReduceOp::kMax) = reduce_kernel<Type, FloatMax, Keep>;
  table.scale_of(t) = scale_kernel<Type>;
}
template <class Type>
void fill_complex(KernelTable& table, DataType t) {
  table.at(t, ReduceOp::kSum) = reduce_kernel<Type, Sum, Keep>;
  table.at(t, ReduceOp::kPremulSum) = reduce_kernel<Type, Sum, Keep>;
  table.at(t, ReduceOp::kAvg) = reduce_kernel<Type, Sum, Divide>;
  table.at(t, ReduceOp::kProduct) = reduce_kernel<Type, ComplexProduct, Keep>;
  table.scale_of(t) = scale_kernel<Type>;
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
