// Tiles of an all-reduce over 8-bit codes: how a warp makes codes and scales of 512 numbers, and numbers of them again.
//
// A block's scale is its largest magnitude divided by the largest code, at least 2^-126 (so that tiny numbers become
// zeros, not infinities). A block that holds an infinity or a NaN has the scale NaN: all of it becomes NaN.
#pragma once

#include "algorithm/cuda/quantized_args.h"
#include "algorithm/cuda/warp.cuh"
#include "device/cuda/codes.cuh"
#include "device/cuda/reducers.cuh"

namespace tutti::cuda {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

// What one lane holds of a tile.
struct Sixteen {
  float f[kLaneElements];
};
struct LaneCodes {
  Vec16 codes;
  float scale;   // of the lane's block
  Vec16 scales;  // what the lane sends of all scales, if it is one of the first scale_vectors
};

template <class Lanes>
TUTTI_DEVICE Sixteen load_sixteen(const QuantizedArgs& args, std::size_t tile, int lane) {
  constexpr int kVectors = static_cast<int>(kLaneElements) / Lanes::kLanes;
  const std::size_t begin =
      (tile * kTileElements + static_cast<std::size_t>(lane) * kLaneElements) * 16 / Lanes::kLanes;
  const std::size_t end = args.count * 16 / Lanes::kLanes;
  Sixteen values;
  TUTTI_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const std::size_t at = begin + static_cast<std::size_t>(v) * 16;
    const Vec16 loaded = at < end ? device::load_user(args.input + at, end - at) : Vec16{{0, 0, 0, 0}};
    float f[Lanes::kLanes];
    Lanes::unpack(loaded, f);
    TUTTI_UNROLL
    for (int i = 0; i < Lanes::kLanes; ++i) values.f[v * Lanes::kLanes + i] = f[i];
  }
  return values;
}
// One rounding, to the tensor's type.
template <class Lanes>
TUTTI_DEVICE void store_sixteen(const QuantizedArgs& args, std::size_t tile, int lane, const Sixteen& values) {
  constexpr int kVectors = static_cast<int>(kLaneElements) / Lanes::kLanes;
  const std::size_t begin =
      (tile * kTileElements + static_cast<std::size_t>(lane) * kLaneElements) * 16 / Lanes::kLanes;
  const std::size_t end = args.count * 16 / Lanes::kLanes;
  TUTTI_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    const std::size_t at = begin + static_cast<std::size_t>(v) * 16;
    float f[Lanes::kLanes];
    TUTTI_UNROLL
    for (int i = 0; i < Lanes::kLanes; ++i) f[i] = values.f[v * Lanes::kLanes + i];
    if (at < end) device::store_user(args.output + at, Lanes::pack(f), end - at);
  }
}

template <class Code>
TUTTI_DEVICE float scale_of_peak(std::uint32_t peak) {
  if (peak >= kInfinityBits) return float_of(0x7fc00000u);
  const float scale = float_of(peak) / Code::kLargest;
  const float least = float_of(0x00800000u);  // 2^-126
  return scale < least ? least : scale;
}
template <class Code>
TUTTI_DEVICE Vec16 codes_of(const Sixteen& values, float scale) {
  const float inverse = 1.0f / scale;
  Vec16 codes;
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    float f[4];
    TUTTI_UNROLL
    for (int j = 0; j < 4; ++j) f[j] = values.f[4 * i + j] * inverse;
    codes.w[i] = Code::out(f);
  }
  return codes;
}
template <class Code>
TUTTI_DEVICE Sixteen numbers_of(const Vec16& codes, float scale) {
  Sixteen values;
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    float f[4];
    Code::in(codes.w[i], f);
    TUTTI_UNROLL
    for (int j = 0; j < 4; ++j) values.f[4 * i + j] = product(f[j], scale);
  }
  return values;
}

TUTTI_DEVICE Sixteen decode(const QuantizedArgs& args, const Vec16& codes, float scale) {
  return args.int8 != 0 ? numbers_of<Int8Code>(codes, scale) : numbers_of<Fp8Code>(codes, scale);
}

// All lanes of a warp. Without the scales that are to be sent.
template <class Team>
TUTTI_DEVICE void encode(const Team& /*team*/, const QuantizedArgs& args, const Sixteen (&values)[kLanesHere<Team>],
                         LaneCodes (&encoded)[kLanesHere<Team>]) {
  constexpr int kHere = kLanesHere<Team>;
  std::uint32_t peaks[kHere];
  for (int l = 0; l < kHere; ++l) {
    peaks[l] = 0;
    TUTTI_UNROLL
    for (int i = 0; i < static_cast<int>(kLaneElements); ++i) {
      const std::uint32_t magnitude = bits_of(values[l].f[i]) & 0x7fffffffu;
      if (magnitude > peaks[l]) peaks[l] = magnitude;
    }
  }
  combine_lanes(peaks, args.scaled_lanes, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
  for (int l = 0; l < kHere; ++l) {
    const float scale = args.int8 != 0 ? scale_of_peak<Int8Code>(peaks[l]) : scale_of_peak<Fp8Code>(peaks[l]);
    encoded[l].scale = scale;
    encoded[l].codes = args.int8 != 0 ? codes_of<Int8Code>(values[l], scale) : codes_of<Fp8Code>(values[l], scale);
  }
}
// The scales that a lane sends, of all lanes' codes. All lanes of a warp.
template <class Team>
TUTTI_DEVICE void gather_scales(const Team& team, const QuantizedArgs& args, LaneCodes (&encoded)[kLanesHere<Team>]) {
  constexpr int kHere = kLanesHere<Team>;
  float scales[kHere];
  for (int l = 0; l < kHere; ++l) scales[l] = encoded[l].scale;
  for (int l = 0; l < kHere; ++l) {
    const int first_block = 4 * lane_of(team, l);
    TUTTI_UNROLL
    for (int i = 0; i < 4; ++i) {
      encoded[l].scales.w[i] = bits_of(of_lane(scales, (first_block + i) * args.scaled_lanes % kLanes));
    }
  }
}

// Where the scale of a lane's block lies: in which vector of a tile, and which word of that.
TUTTI_DEVICE int scale_vector(const QuantizedArgs& args, int lane) { return kLanes + lane / args.scaled_lanes / 4; }
TUTTI_DEVICE int scale_word(const QuantizedArgs& args, int lane) { return lane / args.scaled_lanes % 4; }

}  // namespace tutti::cuda
