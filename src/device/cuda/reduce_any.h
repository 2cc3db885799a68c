// Reductions of 16 bytes of every rank for any element type and operation, chosen at run time: small, and compiled
// once. The common sums have code of their own (reducers.cuh).
//
// Rank order, one rounding at the end: the bits of the CPU's kernels. Compile without contraction of products and sums.
#pragma once

#include "device/cuda/number_codec.h"
#include "tutti/types.h"

namespace tutti::cuda {

struct ReduceSpec {
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int divisor = 1;                      // kAvg
  double factor = 1.0;                  // kPremulSum: of this rank's own input
  const void* device_factor = nullptr;  // when set, instead: a value of the codec
};

template <typename V>
TUTTI_DEVICE V combine(ReduceOp op, V a, V b) {
  if constexpr (std::is_same_v<V, bool>) {
    if (op == ReduceOp::kBxor) return a != b;
    return op == ReduceOp::kProduct || op == ReduceOp::kMin || op == ReduceOp::kBand ? a && b : a || b;
  } else {
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
      // A NaN stays; of equal values (signed zeros) the later one.
      if (a != a) return a;
      return (op == ReduceOp::kMin ? a < b : a > b) ? a : b;
    }
    if constexpr (std::is_integral_v<V>) {
      using U = std::uint64_t;  // wraps; the low bits do not depend on width or sign
      switch (op) {
        case ReduceOp::kProduct:
          return static_cast<V>(static_cast<U>(a) * static_cast<U>(b));
        case ReduceOp::kBand:
          return static_cast<V>(a & b);
        case ReduceOp::kBor:
          return static_cast<V>(a | b);
        case ReduceOp::kBxor:
          return static_cast<V>(a ^ b);
        default:
          return static_cast<V>(static_cast<U>(a) + static_cast<U>(b));
      }
    } else {
      return op == ReduceOp::kProduct ? a * b : a + b;
    }
  }
}

// Cut towards zero. The type itself may be too narrow for the divisor.
template <typename V>
TUTTI_DEVICE V quotient(V value, int divisor) {
  using Wide = std::conditional_t<std::is_signed_v<V>, std::int64_t, std::uint64_t>;
  return static_cast<V>(static_cast<Wide>(value) / static_cast<Wide>(divisor));
}

template <typename T>
TUTTI_DEVICE T element(const device::Vec16& v, int i) {
  T t;
  memcpy(&t, reinterpret_cast<const char*>(&v) + i * static_cast<int>(sizeof(T)), sizeof(T));
  return t;
}
template <typename T>
TUTTI_DEVICE void set_element(device::Vec16& v, int i, T t) {
  memcpy(reinterpret_cast<char*>(&v) + i * static_cast<int>(sizeof(T)), &t, sizeof(T));
}

template <class Codec>
TUTTI_DEVICE void reduce_scalars(const device::Vec16* v, int n, const ReduceSpec& spec, device::Vec16& out) {
  using S = typename Codec::Stored;
  using V = typename Codec::Value;
  for (int i = 0; i < static_cast<int>(16 / sizeof(S)); ++i) {
    V acc = Codec::in(element<S>(v[0], i));
    for (int r = 1; r < n; ++r) acc = combine<V>(spec.op, acc, Codec::in(element<S>(v[r], i)));
    if constexpr (std::is_floating_point_v<V>) {
      if (spec.op == ReduceOp::kAvg) acc = acc / static_cast<V>(spec.divisor);
    } else if constexpr (!std::is_same_v<V, bool>) {
      if (spec.op == ReduceOp::kAvg) acc = quotient(acc, spec.divisor);
    }
    set_element<S>(out, i, Codec::out(acc));
  }
}

// Products of complex numbers, each step rounded.
template <class Codec>
TUTTI_DEVICE void multiply_complex(const device::Vec16* v, int n, device::Vec16& out) {
  using S = typename Codec::Stored;
  using V = typename Codec::Value;
  for (int i = 0; i < static_cast<int>(8 / sizeof(S)); ++i) {
    V re = Codec::in(element<S>(v[0], 2 * i)), im = Codec::in(element<S>(v[0], 2 * i + 1));
    for (int r = 1; r < n; ++r) {
      const V c = Codec::in(element<S>(v[r], 2 * i)), d = Codec::in(element<S>(v[r], 2 * i + 1));
      const V ac = re * c, bd = im * d, ad = re * d, bc = im * c;
      re = ac - bd;
      im = ad + bc;
    }
    set_element<S>(out, 2 * i, Codec::out(re));
    set_element<S>(out, 2 * i + 1, Codec::out(im));
  }
}

template <class Codec>
TUTTI_DEVICE void multiply_by_factor(const device::Vec16& v, const ReduceSpec& spec, device::Vec16& out) {
  using S = typename Codec::Stored;
  using V = typename Codec::Value;
  if constexpr (std::is_floating_point_v<V>) {
    // Read here, not once a thread: it stays in the nearest cache, and the sums that have no factor carry nothing.
    const V factor = spec.device_factor != nullptr ? Codec::in(*static_cast<const S*>(spec.device_factor))
                                                   : static_cast<V>(spec.factor);
    for (int i = 0; i < static_cast<int>(16 / sizeof(S)); ++i) {
      set_element<S>(out, i, Codec::out(Codec::in(element<S>(v, i)) * factor));
    }
  }
}

// Calls f.template operator()<Codec>() with the codec of `dtype` (for complex: of its parts).
template <class F>
TUTTI_DEVICE void with_codec(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kBool:
      return f.template operator()<Boolean>();
    case DataType::kUint8:
      return f.template operator()<Plain<std::uint8_t>>();
    case DataType::kInt8:
      return f.template operator()<Plain<std::int8_t>>();
    case DataType::kUint16:
      return f.template operator()<Plain<std::uint16_t>>();
    case DataType::kInt16:
      return f.template operator()<Plain<std::int16_t>>();
    case DataType::kUint32:
      return f.template operator()<Plain<std::uint32_t>>();
    case DataType::kInt32:
      return f.template operator()<Plain<std::int32_t>>();
    case DataType::kUint64:
      return f.template operator()<Plain<std::uint64_t>>();
    case DataType::kInt64:
      return f.template operator()<Plain<std::int64_t>>();
    case DataType::kFloat8E4M3fn:
      return f.template operator()<E4M3fn>();
    case DataType::kFloat8E5M2:
      return f.template operator()<E5M2>();
    case DataType::kFloat8E4M3fnuz:
      return f.template operator()<E4M3fnuz>();
    case DataType::kFloat8E5M2fnuz:
      return f.template operator()<E5M2fnuz>();
    case DataType::kFloat8E8M0fnu:
      return f.template operator()<E8M0fnu>();
    case DataType::kBfloat16:
      return f.template operator()<Bf16>();
    case DataType::kFloat16:
    case DataType::kComplex32:
      return f.template operator()<F16>();
    case DataType::kFloat32:
    case DataType::kComplex64:
      return f.template operator()<Plain<float>>();
    case DataType::kFloat64:
    case DataType::kComplex128:
      return f.template operator()<Plain<double>>();
    case DataType::kByte:
      return;
  }
}

struct ReduceBody {
  const device::Vec16* v;
  int n;
  const ReduceSpec& spec;
  device::Vec16& out;
  template <class Codec>
  TUTTI_DEVICE void operator()() const {
    if constexpr (std::is_floating_point_v<typename Codec::Value>) {
      if (spec.op == ReduceOp::kProduct && spec.dtype >= DataType::kComplex32)
        return multiply_complex<Codec>(v, n, out);
    }
    reduce_scalars<Codec>(v, n, spec, out);
  }
};
struct FactorBody {
  const device::Vec16& v;
  const ReduceSpec& spec;
  device::Vec16& out;
  template <class Codec>
  TUTTI_DEVICE void operator()() const {
    multiply_by_factor<Codec>(v, spec, out);
  }
};

}  // namespace tutti::cuda
