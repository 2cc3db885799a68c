// One all_reduce_add_rms_norm with its data and the bits that must come out: computed one element at a time, by the
// arithmetic of include/tutti/serving.h and the order of additions that src/algorithm/cuda/norm_rows.cuh promises.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "device/reference_reduce.h"
#include "tutti/serving.h"

namespace tutti::cuda::test {

enum class NormOutput { kSame, kFp8, kFp8Rows };

struct NormShape {
  DataType dtype = DataType::kBfloat16;
  std::size_t rows = 1, hidden = 64;
  NormOutput output = NormOutput::kSame;
  bool in_place = false;  // the residual's output is the residual, and the output, if it may, the input
  std::size_t shift = 0;  // elements by which all memory is off its alignment
};

inline std::string describe(const NormShape& s, int size) {
  return std::string(to_string(s.dtype)) + "[" + std::to_string(s.rows) + ", " + std::to_string(s.hidden) + "] " +
         (s.output == NormOutput::kSame  ? ""
          : s.output == NormOutput::kFp8 ? "fp8 "
                                         : "fp8 by row ") +
         "ranks " + std::to_string(size) + (s.in_place ? " in place" : "") + " shift " + std::to_string(s.shift);
}

// Values between -4 and 4 that differ by seed, tensor and index; not exact in their sums.
inline float norm_value(std::uint64_t seed, std::uint64_t tensor, std::size_t i) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + tensor * 0x51ed270b + i;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return (static_cast<float>(x % 100'003) / 50'001.5f - 1.0f) * 4.0f;
}

class NormCase {
 public:
  static constexpr float kScale = 0.037f, kEpsilon = 1e-5f;

  NormCase(const NormShape& shape, int size, std::uint64_t seed) : shape_(shape) {
    const std::size_t count = shape.rows * shape.hidden;
    for (int r = 0; r < size; ++r) inputs_.push_back(filled(count, seed, static_cast<std::uint64_t>(r)));
    residual_ = filled(count, seed, 100);
    weight_ = filled(shape.hidden, seed, 101);
    expect();
  }
  const NormShape& shape() const { return shape_; }
  const std::vector<std::byte>& input(int r) const { return inputs_[static_cast<std::size_t>(r)]; }
  const std::vector<std::byte>& residual() const { return residual_; }
  const std::vector<std::byte>& weight() const { return weight_; }
  // Of all inputs.
  const std::vector<std::byte>& sum() const { return sum_; }
  const std::vector<std::byte>& expected_residual() const { return expected_residual_; }
  const std::vector<std::byte>& expected_output() const { return expected_output_; }
  const std::vector<float>& expected_scales() const { return expected_scales_; }

 private:
  std::vector<std::byte> filled(std::size_t count, std::uint64_t seed, std::uint64_t tensor) const {
    std::vector<std::byte> bytes(count * size_of(shape_.dtype));
    reference::with_traits(shape_.dtype, [&]<typename Traits>(Traits) {
      if constexpr (std::is_same_v<typename Traits::Value, float>) {
        using S = typename Traits::Stored;
        for (std::size_t i = 0; i < count; ++i) {
          reference::store<S>(bytes.data(), i, Traits::out(norm_value(seed, tensor, i)));
        }
      }
    });
    return bytes;
  }

  static float tree(std::vector<float> values) {
    for (std::size_t half = values.size() / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) values[i] += values[i + half];
    }
    return values[0];
  }
  // The sum of squares in the promised order.
  float square_sum(const std::vector<float>& row) const {
    const std::size_t of_vector = 16 / size_of(shape_.dtype), of_segment = 32 * of_vector;
    std::vector<float> lanes(32, 0.0f);
    for (std::size_t segment = 0; segment * of_segment < row.size(); ++segment) {
      std::vector<float> vectors(32, 0.0f);
      for (std::size_t i = segment * of_segment; i < std::min(row.size(), (segment + 1) * of_segment); ++i) {
        const float square = row[i] * row[i];
        float& sum = vectors[i % of_segment / of_vector];
        sum = sum + square;
      }
      lanes[segment % 32] += tree(vectors);
    }
    return tree(lanes);
  }

  void expect() {
    const std::size_t count = shape_.rows * shape_.hidden;
    sum_.resize(residual_.size());
    std::vector<const void*> srcs;
    for (const auto& input : inputs_) srcs.push_back(input.data());
    void* dst = sum_.data();
    reference::reduce(&dst, 1, srcs.data(), static_cast<int>(srcs.size()), count, shape_.dtype, ReduceOp::kSum, 1);
    expected_residual_.resize(residual_.size());
    expected_output_.resize(shape_.output == NormOutput::kSame ? residual_.size() : count);
    reference::with_traits(shape_.dtype, [&]<typename Traits>(Traits) {
      if constexpr (std::is_same_v<typename Traits::Value, float>) expect_rows<Traits>();
    });
  }

  template <typename Traits>
  void expect_rows() {
    using S = typename Traits::Stored;
    const auto load = [](const std::vector<std::byte>& from, std::size_t i) {
      return Traits::in(reference::load<S>(from.data(), i));
    };
    const auto rounded = [](float f) { return Traits::in(Traits::out(f)); };
    for (std::size_t r = 0; r < shape_.rows; ++r) {
      std::vector<float> s, y;
      for (std::size_t i = 0; i < shape_.hidden; ++i) {
        const std::size_t at = r * shape_.hidden + i;
        s.push_back(rounded(load(sum_, at) + load(residual_, at)));
        reference::store<S>(expected_residual_.data(), at, Traits::out(s.back()));
      }
      const float mean = square_sum(s) / static_cast<float>(shape_.hidden);
      const float inverse = 1.0f / std::sqrt(mean + kEpsilon);
      float most = 0;
      for (std::size_t i = 0; i < shape_.hidden; ++i) {
        y.push_back(rounded(rounded(s[i] * inverse) * load(weight_, i)));
        most = std::max(most, std::abs(y.back()));
      }
      const float scale = shape_.output == NormOutput::kFp8Rows ? std::max(most / 448.0f, kLeastRowScale) : kScale;
      expected_scales_.push_back(scale);
      for (std::size_t i = 0; i < shape_.hidden; ++i) {
        const std::size_t at = r * shape_.hidden + i;
        if (shape_.output == NormOutput::kSame) {
          reference::store<S>(expected_output_.data(), at, Traits::out(y[i]));
        } else {
          reference::with_traits(DataType::kFloat8E4M3fn, [&]<typename Fp8>(Fp8) {
            if constexpr (std::is_same_v<typename Fp8::Value, float>) {
              expected_output_[at] = static_cast<std::byte>(Fp8::out(std::clamp(y[i] / scale, -448.0f, 448.0f)));
            }
          });
        }
      }
    }
  }

  NormShape shape_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::byte> residual_, weight_, sum_, expected_residual_, expected_output_;
  std::vector<float> expected_scales_;
};

// Where a case's tensors lie, on the host or on a device.
struct NormBuffers {
  std::byte *input, *residual, *weight, *residual_output, *output;
  float *scale, *row_scales;
  std::byte* workspace = nullptr;  // of the input's size
};
inline AddRmsNorm norm_call(const NormShape& s, const NormBuffers& b) {
  AddRmsNorm call;
  call.dtype = s.dtype;
  call.rows = s.rows;
  call.hidden = s.hidden;
  call.epsilon = NormCase::kEpsilon;
  call.input = b.input;
  call.residual = b.residual;
  call.weight = b.weight;
  call.residual_output = b.residual_output;
  call.output = b.output;
  call.fp8 = s.output != NormOutput::kSame;
  if (s.output == NormOutput::kFp8) call.scale = b.scale;
  if (s.output == NormOutput::kFp8Rows) call.row_scales = b.row_scales;
  if (call.fp8 && s.in_place) call.workspace = b.workspace;
  return call;
}

}  // namespace tutti::cuda::test
