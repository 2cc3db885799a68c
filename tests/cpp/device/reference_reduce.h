// reduce() and scale() as the header of the kernels promises them, one element at a time.
//
// Ownership: none, pure functions. Thread rule: freely callable.
#pragma once

#include <complex>
#include <cstddef>

#include "device/reference.h"

namespace tutti::reference {

template <typename T>
T load(const void* p, std::size_t i) {
  T v;
  std::memcpy(&v, static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return v;
}
template <typename T>
void store(void* p, std::size_t i, T v) {
  std::memcpy(static_cast<char*>(p) + i * sizeof(T), &v, sizeof(T));
}

// How one scalar of a type is read into its accumulator and written back; S is what lies in memory.
template <typename S>
struct Plain {
  using Stored = S;
  using Value = S;
  static Value in(S s) { return s; }
  static S out(Value v) { return v; }
};
struct Boolean {
  using Stored = std::uint8_t;
  using Value = bool;
  static bool in(std::uint8_t s) { return s != 0; }
  static std::uint8_t out(bool v) { return v ? 1 : 0; }
};
template <const Format& kFormat, typename S>
struct Narrow {
  using Stored = S;
  using Value = float;
  static float in(S s) { return static_cast<float>(decode(kFormat, s)); }
  static S out(float v) { return static_cast<S>(encode(kFormat, v)); }
};
struct Exponent {
  using Stored = std::uint8_t;
  using Value = float;
  static float in(std::uint8_t s) { return decode_e8m0(s); }
  static std::uint8_t out(float v) { return static_cast<std::uint8_t>(encode_e8m0(v)); }
};

template <typename V>
V combine(ReduceOp op, V a, V b) {
  if constexpr (std::is_same_v<V, bool>) {
    switch (op) {
      case ReduceOp::kProduct:
      case ReduceOp::kMin:
      case ReduceOp::kBand:
        return a && b;
      case ReduceOp::kBxor:
        return a != b;
      default:
        return a || b;
    }
  } else if constexpr (std::is_integral_v<V>) {
    using U = std::uint64_t;  // wraps; the low bits of sum and product do not depend on the width or the sign
    switch (op) {
      case ReduceOp::kProduct:
        return static_cast<V>(static_cast<U>(a) * static_cast<U>(b));
      case ReduceOp::kMin:
        return b < a ? b : a;
      case ReduceOp::kMax:
        return b > a ? b : a;
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
    switch (op) {
      case ReduceOp::kProduct:
        return a * b;
      case ReduceOp::kMin:  // equal values (signed zeros): the later one
        return std::isnan(a) || a < b ? a : b;
      case ReduceOp::kMax:
        return std::isnan(a) || a > b ? a : b;
      default:
        return a + b;
    }
  }
}

template <typename Traits>
void reduce_scalars(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count, ReduceOp op,
                    int divisor) {
  using S = typename Traits::Stored;
  for (std::size_t i = 0; i < count; ++i) {
    auto v = Traits::in(load<S>(srcs[0], i));
    for (int s = 1; s < n_srcs; ++s) v = combine(op, v, Traits::in(load<S>(srcs[s], i)));
    if constexpr (std::is_floating_point_v<decltype(v)>) {
      if (op == ReduceOp::kAvg) v /= static_cast<decltype(v)>(divisor);
    } else if constexpr (std::is_signed_v<decltype(v)>) {
      if (op == ReduceOp::kAvg) v = static_cast<decltype(v)>(std::int64_t{v} / divisor);
    } else {
      if (op == ReduceOp::kAvg) v = static_cast<decltype(v)>(std::uint64_t{v} / static_cast<std::uint64_t>(divisor));
    }
    for (int d = 0; d < n_dsts; ++d) store<S>(dsts[d], i, Traits::out(v));
  }
}

// Products of complex numbers: (a+bi)(c+di) = (ac-bd) + (ad+bc)i, each step rounded.
template <typename Traits>
void multiply_complex(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count) {
  using S = typename Traits::Stored;
  for (std::size_t i = 0; i < count; ++i) {
    auto re = Traits::in(load<S>(srcs[0], 2 * i));
    auto im = Traits::in(load<S>(srcs[0], 2 * i + 1));
    for (int s = 1; s < n_srcs; ++s) {
      const auto c = Traits::in(load<S>(srcs[s], 2 * i));
      const auto d = Traits::in(load<S>(srcs[s], 2 * i + 1));
      const auto ac = re * c, bd = im * d, ad = re * d, bc = im * c;
      re = ac - bd;
      im = ad + bc;
    }
    for (int k = 0; k < n_dsts; ++k) {
      store<S>(dsts[k], 2 * i, Traits::out(re));
      store<S>(dsts[k], 2 * i + 1, Traits::out(im));
    }
  }
}

// Calls `f` with the traits of `dtype` (for complex: of its parts).
template <typename F>
void with_traits(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kBool:
      return f(Boolean{});
    case DataType::kUint8:
      return f(Plain<std::uint8_t>{});
    case DataType::kInt8:
      return f(Plain<std::int8_t>{});
    case DataType::kUint16:
      return f(Plain<std::uint16_t>{});
    case DataType::kInt16:
      return f(Plain<std::int16_t>{});
    case DataType::kUint32:
      return f(Plain<std::uint32_t>{});
    case DataType::kInt32:
      return f(Plain<std::int32_t>{});
    case DataType::kUint64:
      return f(Plain<std::uint64_t>{});
    case DataType::kInt64:
      return f(Plain<std::int64_t>{});
    case DataType::kFloat8E4M3fn:
      return f(Narrow<kE4M3fn, std::uint8_t>{});
    case DataType::kFloat8E5M2:
      return f(Narrow<kE5M2, std::uint8_t>{});
    case DataType::kFloat8E4M3fnuz:
      return f(Narrow<kE4M3fnuz, std::uint8_t>{});
    case DataType::kFloat8E5M2fnuz:
      return f(Narrow<kE5M2fnuz, std::uint8_t>{});
    case DataType::kFloat8E8M0fnu:
      return f(Exponent{});
    case DataType::kBfloat16:
      return f(Narrow<kBf16, std::uint16_t>{});
    case DataType::kFloat16:
    case DataType::kComplex32:
      return f(Narrow<kF16, std::uint16_t>{});
    case DataType::kFloat32:
    case DataType::kComplex64:
      return f(Plain<float>{});
    case DataType::kFloat64:
    case DataType::kComplex128:
      return f(Plain<double>{});
    case DataType::kByte:
      return;
  }
}

inline bool is_complex_type(DataType dtype) {
  return dtype == DataType::kComplex32 || dtype == DataType::kComplex64 || dtype == DataType::kComplex128;
}

inline void reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
                   DataType dtype, ReduceOp op, int divisor) {
  with_traits(dtype, [&]<typename Traits>(Traits) {
    if constexpr (std::is_floating_point_v<typename Traits::Value>) {
      if (is_complex_type(dtype) && op == ReduceOp::kProduct) {
        return multiply_complex<Traits>(dsts, n_dsts, srcs, n_srcs, count);
      }
    }
    const std::size_t scalars = is_complex_type(dtype) ? 2 * count : count;
    reduce_scalars<Traits>(dsts, n_dsts, srcs, n_srcs, scalars, op, divisor);
  });
}

inline void scale(void* dst, const void* src, std::size_t count, DataType dtype, double factor) {
  with_traits(dtype, [&]<typename Traits>(Traits) {
    using V = typename Traits::Value;
    using S = typename Traits::Stored;
    if constexpr (std::is_floating_point_v<V>) {
      for (std::size_t i = 0; i < (is_complex_type(dtype) ? 2 * count : count); ++i) {
        store<S>(dst, i, Traits::out(Traits::in(load<S>(src, i)) * static_cast<V>(factor)));
      }
    }
  });
}

}  // namespace tutti::reference
