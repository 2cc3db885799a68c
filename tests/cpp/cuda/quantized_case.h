// One all_reduce_quantized with its data, its exact sum, and the largest error that docs/gpu.md allows.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuda/norm_case.h"
#include "device/reference_reduce.h"
#include "tutti/serving.h"

namespace tutti::cuda::test {

enum class QuantizedData { kRandom, kZeros, kOutliers, kTiny, kNonFinite };
inline constexpr const char* kQuantizedData[] = {"random", "zeros", "outliers", "tiny", "non-finite"};

struct QuantizedShape {
  DataType dtype = DataType::kBfloat16;
  DataType code = DataType::kFloat8E4M3fn;
  int block = 128;
  std::size_t count = 1;
  QuantizedData data = QuantizedData::kRandom;
  bool in_place = false;
  std::size_t shift = 0;
};

inline std::string describe(const QuantizedShape& s, int size) {
  return std::string(to_string(s.dtype)) + "[" + std::to_string(s.count) + "] as " + std::string(to_string(s.code)) +
         " in blocks of " + std::to_string(s.block) + ", " + kQuantizedData[static_cast<int>(s.data)] + ", ranks " +
         std::to_string(size) + (s.in_place ? " in place" : "") + " shift " + std::to_string(s.shift);
}

class QuantizedCase {
 public:
  QuantizedCase(const QuantizedShape& shape, int size, std::uint64_t seed) : shape_(shape), size_(size) {
    for (int r = 0; r < size; ++r) {
      std::vector<std::byte> bytes(shape.count * size_of(shape.dtype));
      std::vector<float> values(shape.count);
      with_type([&]<typename Traits>(Traits) {
        using S = typename Traits::Stored;
        for (std::size_t i = 0; i < shape.count; ++i) {
          const S stored = Traits::out(value(seed, r, i));
          reference::store<S>(bytes.data(), i, stored);
          values[i] = Traits::in(stored);
        }
      });
      inputs_.push_back(std::move(bytes));
      values_.push_back(std::move(values));
    }
  }
  const QuantizedShape& shape() const { return shape_; }
  const std::vector<std::byte>& input(int r) const { return inputs_[static_cast<std::size_t>(r)]; }

  // What is wrong with an output; empty if nothing is.
  std::string complaint(const std::byte* output) const {
    std::string text;
    const auto block = static_cast<std::size_t>(shape_.block);
    with_type([&]<typename Traits>(Traits) {
      for (std::size_t begin = 0; begin < shape_.count; begin += block) {
        const std::size_t end = std::min(shape_.count, begin + block);
        const double magnitudes = magnitudes_of(begin, end);
        for (std::size_t i = begin; i < end && text.empty(); ++i) {
          const double got = Traits::in(reference::load<typename Traits::Stored>(output, i));
          if (!(std::isnan(magnitudes) ? std::isnan(got)
                                       : std::abs(got - exact(i)) <= allowed<Traits>(i, magnitudes))) {
            text = "element " + std::to_string(i) + " is " + std::to_string(got) + ", the sum is " +
                   std::to_string(exact(i)) + ", with an error of at most " +
                   std::to_string(allowed<Traits>(i, magnitudes));
          }
        }
      }
    });
    return text;
  }

 private:
  template <typename F>
  void with_type(F f) const {
    reference::with_traits(shape_.dtype, [&]<typename Traits>(Traits traits) {
      if constexpr (std::is_same_v<typename Traits::Value, float>) f(traits);
    });
  }
  float value(std::uint64_t seed, int rank, std::size_t i) const {
    const float random = norm_value(seed, static_cast<std::uint64_t>(rank), i);
    switch (shape_.data) {
      case QuantizedData::kZeros:
        return i % 2 == 0 ? 0.0f : -0.0f;
      case QuantizedData::kOutliers:
        return i % 131 == static_cast<std::size_t>(rank) ? random * 3000.0f : random;
      case QuantizedData::kTiny:  // subnormal in fp32, bf16 and fp16
        return random * (shape_.dtype == DataType::kFloat16 ? 1e-7f : 1e-39f);
      case QuantizedData::kNonFinite:
        if (i == 5 && rank == 0) return std::numeric_limits<float>::infinity();
        if (i == static_cast<std::size_t>(shape_.block) * 2 && rank == size_ - 1) {
          return std::numeric_limits<float>::quiet_NaN();
        }
        return random;
      case QuantizedData::kRandom:
        break;
    }
    return random;
  }
  double exact(std::size_t i) const {
    double sum = 0;
    for (const auto& values : values_) sum += values[i];
    return sum;
  }
  // The sum over all ranks of the largest magnitude in a block; NaN if a rank has something else than numbers there.
  double magnitudes_of(std::size_t begin, std::size_t end) const {
    double sum = 0;
    for (const auto& values : values_) {
      double most = 0;
      for (std::size_t i = begin; i < end; ++i) {
        if (!std::isfinite(values[i])) return std::numeric_limits<double>::quiet_NaN();
        most = std::max(most, std::abs(static_cast<double>(values[i])));
      }
      sum += most;
    }
    return sum;
  }
  // The documented bound, and what is rounded: to the output's type (half a step at what comes out), in fp32 sums.
  template <typename Traits>
  double allowed(std::size_t i, double magnitudes) const {
    const double c = shape_.code == DataType::kInt8 ? 254 : 28;
    const double codes = (2 + 1 / c) * (magnitudes / c + size_ * 0x1p-126);
    const double half_step = shape_.dtype == DataType::kFloat32   ? 0x1p-24
                             : shape_.dtype == DataType::kFloat16 ? 0x1p-11
                                                                  : 0x1p-8;
    const double least = shape_.dtype == DataType::kFloat16 ? 0x1p-25 : 0x1p-134;
    const double rounded = std::max((std::abs(exact(i)) + codes) * half_step, least);
    return codes * (1 + 0x1p-18) + rounded + magnitudes * size_ * 0x1p-24;
  }

  QuantizedShape shape_;
  int size_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::vector<float>> values_;
};

inline QuantizedAllReduce quantized_call(const QuantizedShape& s, const std::byte* input, std::byte* output) {
  QuantizedAllReduce call;
  call.dtype = s.dtype;
  call.code = s.code;
  call.block = s.block;
  call.count = s.count;
  call.input = input;
  call.output = output;
  return call;
}

}  // namespace tutti::cuda::test
