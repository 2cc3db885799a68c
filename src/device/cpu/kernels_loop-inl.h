// The loops of all reductions: full vectors, then 128-bit vectors, then single elements, never beyond the range.
// Included once per instruction set (see Highway's foreach_target.h).
//
// What a loop works on is a "lane": a type that says how `kStep` elements are loaded into an accumulator (`Value`) and
// stored from it. Lane<kCap> is the lane of at most kCap elements, so that one description serves all three widths.
// Elementwise work gives the same bits in whatever way the range is cut.

#if defined(TUTTI_DEVICE_CPU_KERNELS_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TUTTI_DEVICE_CPU_KERNELS_LOOP_INL_H_
#undef TUTTI_DEVICE_CPU_KERNELS_LOOP_INL_H_
#else
#define TUTTI_DEVICE_CPU_KERNELS_LOOP_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tutti::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Two vectors that hold the elements of one step: the accumulator of types that widen.
template <class V>
struct Pair {
  V even;
  V odd;
};

template <class Op, class D, class V>
HWY_INLINE V combine(D d, V a, V b) {
  return Op::apply(d, a, b);
}
template <class Op, class D, class V>
HWY_INLINE Pair<V> combine(D d, Pair<V> a, Pair<V> b) {
  return {Op::apply(d, a.even, b.even), Op::apply(d, a.odd, b.odd)};
}
template <class Finish, class D, class V>
HWY_INLINE V finish_value(const Finish& finish, D d, V v) {
  return finish.apply(d, v);
}
template <class Finish, class D, class V>
HWY_INLINE Pair<V> finish_value(const Finish& finish, D d, Pair<V> v) {
  return {finish.apply(d, v.even), finish.apply(d, v.odd)};
}

// What happens to the accumulator before it is stored.
struct Keep {
  explicit Keep(int /*divisor*/) {}
  template <class D, class V>
  HWY_INLINE V apply(D /*d*/, V v) const {
    return v;
  }
};
// Division by the number of ranks. By a power of two it is an exact multiplication, with the same bits and cheaper.
struct Divide {
  explicit Divide(int n) : divisor(n), reciprocal(1.0 / n), exact((n & (n - 1)) == 0) {}
  template <class D, class V>
  HWY_INLINE V apply(D d, V v) const {
    using T = hn::TFromD<D>;
    return exact ? hn::Mul(v, hn::Set(d, static_cast<T>(reciprocal))) : hn::Div(v, hn::Set(d, static_cast<T>(divisor)));
  }
  int divisor;
  double reciprocal;
  bool exact;
};
struct Multiply {
  explicit Multiply(double f) : factor(f) {}
  template <class D, class V>
  HWY_INLINE V apply(D d, V v) const {
    return hn::Mul(v, hn::Set(d, static_cast<hn::TFromD<D>>(factor)));
  }
  double factor;
};

// One call's memory. Counts that are known at compile time replace n_srcs and n_dsts.
struct Operands {
  void* const* dsts;
  int n_dsts;
  const void* const* srcs;
  int n_srcs;
};

template <class L>
HWY_INLINE typename L::Value load_at(const void* base, std::size_t i) {
  return L::load(static_cast<const typename L::Stored*>(base) + i);
}
template <class L>
HWY_INLINE void store_at(typename L::Value v, void* base, std::size_t i) {
  L::store(v, static_cast<typename L::Stored*>(base) + i);
}

// Steps of kUnroll vectors from element `i` on while they fit; returns the first element that is left.
// kSrcs, kDsts: 0 when not known before the call. All loads of a step come before its stores: a dst may be a src.
template <class L, class Op, int kUnroll, int kSrcs, int kDsts, class Finish>
HWY_INLINE std::size_t run_steps(const Operands& m, std::size_t i, std::size_t count, const Finish& finish) {
  constexpr std::size_t kBlock = L::kStep * kUnroll;
  const typename L::D d;
  const int n_srcs = kSrcs != 0 ? kSrcs : m.n_srcs;
  const int n_dsts = kDsts != 0 ? kDsts : m.n_dsts;
  // Held in registers where the counts are known; else a store to a dst might change the array.
  const void* first = m.srcs[0];
  const void* second = kSrcs >= 2 ? m.srcs[1] : nullptr;
  const void* third = kSrcs >= 3 ? m.srcs[2] : nullptr;
  const void* fourth = kSrcs >= 4 ? m.srcs[3] : nullptr;
  void* out0 = m.dsts[0];
  void* out1 = kDsts >= 2 ? m.dsts[1] : nullptr;
  for (; count - i >= kBlock; i += kBlock) {
    typename L::Value v[kUnroll];
    HWY_UNROLL(4)
    for (int u = 0; u < kUnroll; ++u) {
      const std::size_t at = i + static_cast<std::size_t>(u) * L::kStep;
      v[u] = load_at<L>(first, at);
      if constexpr (kSrcs >= 2) v[u] = combine<Op>(d, v[u], load_at<L>(second, at));
      if constexpr (kSrcs >= 3) v[u] = combine<Op>(d, v[u], load_at<L>(third, at));
      if constexpr (kSrcs >= 4) v[u] = combine<Op>(d, v[u], load_at<L>(fourth, at));
    }
    if constexpr (kSrcs == 0) {
      for (int s = 1; s < n_srcs; ++s) {
        const void* src = m.srcs[s];
        HWY_UNROLL(4)
        for (int u = 0; u < kUnroll; ++u) {
          v[u] = combine<Op>(d, v[u], load_at<L>(src, i + static_cast<std::size_t>(u) * L::kStep));
        }
      }
    }
    HWY_UNROLL(4)
    for (int u = 0; u < kUnroll; ++u) {
      v[u] = finish_value(finish, d, v[u]);
      store_at<L>(v[u], out0, i + static_cast<std::size_t>(u) * L::kStep);
      if constexpr (kDsts >= 2) store_at<L>(v[u], out1, i + static_cast<std::size_t>(u) * L::kStep);
    }
    if constexpr (kDsts == 0) {
      for (int k = 1; k < n_dsts; ++k) {
        void* dst = m.dsts[k];
        HWY_UNROLL(4)
        for (int u = 0; u < kUnroll; ++u) store_at<L>(v[u], dst, i + static_cast<std::size_t>(u) * L::kStep);
      }
    }
  }
  return i;
}

// The portable kernels serve machines that nobody trains on: one element at a time keeps their compile time bounded.
inline constexpr bool kPortable = HWY_TARGET == HWY_EMU128;

// The whole range. Type names the lanes: Type::Wide, Type::Narrow (128 bits), Type::Single.
template <class Type, class Op, int kSrcs, int kDsts, class Finish>
HWY_NOINLINE void run_range(const Operands& m, std::size_t count, const Finish& finish) {
  std::size_t i = 0;
  if constexpr (!kPortable) {
    if (count >= Type::Wide::kStep) {
      i = run_steps<typename Type::Wide, Op, Type::kUnroll, kSrcs, kDsts>(m, i, count, finish);
      i = run_steps<typename Type::Wide, Op, 1, kSrcs, kDsts>(m, i, count, finish);
    }
    if constexpr (Type::Narrow::kStep < Type::Wide::kStep) {
      i = run_steps<typename Type::Narrow, Op, 1, kSrcs, kDsts>(m, i, count, finish);
    }
  }
  run_steps<typename Type::Single, Op, 1, kSrcs, kDsts>(m, i, count, finish);
}

// The kernel of one type and operation. Types that matter most get loops of their own for the commonest shapes; a
// ring step is 2 -> 1, the last one 2 -> 2 (result and the neighbour's staging).
template <class Type, class Op, class Finish>
void reduce_kernel(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count, int divisor) {
  const Operands m{dsts, n_dsts, srcs, n_srcs};
  const Finish finish(divisor);
  count *= Type::kScalars;
  if (n_srcs == 2 && n_dsts == 1) return run_range<Type, Op, 2, 1>(m, count, finish);
  if constexpr (Type::kCommon && !kPortable) {
    if (n_srcs == 2 && n_dsts == 2) return run_range<Type, Op, 2, 2>(m, count, finish);
    if (n_srcs == 1 && n_dsts == 1) return run_range<Type, Op, 1, 1>(m, count, finish);
    if (n_srcs == 3 && n_dsts == 1) return run_range<Type, Op, 3, 1>(m, count, finish);
    if (n_srcs == 4 && n_dsts == 1) return run_range<Type, Op, 4, 1>(m, count, finish);
  }
  run_range<Type, Op, 0, 0>(m, count, finish);
}

template <class Type>
void scale_kernel(void* dst, const void* src, std::size_t count, double factor) {
  struct None {};  // one source: nothing to combine
  run_range<Type, None, 1, 1>({&dst, 1, &src, 1}, count * Type::kScalars, Multiply(factor));
}

}  // namespace HWY_NAMESPACE
}  // namespace tutti::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, once per target
