// What reductions are tried on, and when two results are the same.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "device/reference_reduce.h"

namespace tutti::reference {

inline std::string describe(DataType dtype, ReduceOp op) {
  return std::string(to_string(dtype)) + " " + std::string(to_string(op));
}

// Calls `f` with every type and operation.
template <typename F>
void for_each_reduction(F f) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    for (int o = 0; o < kReduceOpCount; ++o) f(static_cast<DataType>(t), static_cast<ReduceOp>(o));
  }
}

// Values that matter: for floats mostly of like size (so that sums round) among any bit patterns, which include NaNs,
// infinities, subnormals and zeros of both signs.
inline void fill(std::mt19937& random, DataType dtype, std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
  if (dtype == DataType::kBool) {
    for (std::size_t i = 0; i < bytes; ++i)
      data[i] = (data[i] & std::byte{3}) == std::byte{0} ? data[i] : std::byte{random() % 2 == 0};
    return;
  }
  with_traits(dtype, [&]<typename Traits>(Traits) {
    using S = typename Traits::Stored;
    using V = typename Traits::Value;
    if constexpr (std::is_floating_point_v<V>) {
      constexpr std::array<double, 8> kSpecial{0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, 1e-40, 6e-8};
      for (std::size_t i = 0; i < bytes / sizeof(S); ++i) {
        const std::uint32_t kind = random() % 16;
        const double value =
            std::ldexp(static_cast<double>(random()) - 2147483648.0, -31 + static_cast<int>(random() % 4));
        if (kind == 0) store<S>(data, i, Traits::out(static_cast<V>(kSpecial[random() % kSpecial.size()])));
        if (kind > 1) store<S>(data, i, Traits::out(static_cast<V>(value)));
      }
    }
  });
}

// Equal bits; two NaNs are equal whatever their payload, which processors choose differently.
inline ::testing::AssertionResult same(DataType dtype, const std::byte* got, const std::byte* want, std::size_t bytes) {
  auto result = ::testing::AssertionSuccess();
  if (bytes == 0 || std::memcmp(got, want, bytes) == 0) return result;
  with_traits(dtype, [&]<typename Traits>(Traits) {
    using S = typename Traits::Stored;
    for (std::size_t i = 0; i < bytes / sizeof(S) && result; ++i) {
      const S g = load<S>(got, i), w = load<S>(want, i);
      if (std::memcmp(&g, &w, sizeof(S)) == 0) continue;
      if constexpr (std::is_floating_point_v<typename Traits::Value>) {
        if (std::isnan(Traits::in(g)) && std::isnan(Traits::in(w))) continue;
      }
      result = ::testing::AssertionFailure()
               << "scalar " << i << ": got " << ::testing::PrintToString(g) << ", want " << ::testing::PrintToString(w);
    }
  });
  return result;
}

}  // namespace tutti::reference
