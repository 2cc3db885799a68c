// The norm of rows by one block: what add_rms_norm.cuh does with the sums.
//
// The order of additions is fixed by the row alone, so every kernel, on every rank and on the host, gives the same
// bits: within 16 bytes in order; over the 32 vectors of a segment as a tree; over the segments of a row 32 apart in
// order, then as a tree. Divisions and the square root are those of IEEE.
#pragma once

#include "algorithm/cuda/add_rms_norm_args.h"
#include "algorithm/cuda/warp.cuh"
#include "device/cuda/codes.cuh"
#include "device/cuda/reducers.cuh"
#include "tutti/cuda_serving.h"

#if !defined(__CUDA_ARCH__)
#include <cmath>
#endif

namespace tutti::cuda {

// In shared memory of the block; by segment of the rows that are normalised together.
struct NormScratch {
  float sums[kMostSegments];
  std::uint32_t peaks[kMostSegments];  // bits of the largest |y|
};

struct Sum {
  TUTTI_DEVICE float operator()(float a, float b) const { return a + b; }
};
// Of the bits of magnitudes: a NaN is larger than everything.
struct Largest {
  TUTTI_DEVICE std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

TUTTI_DEVICE float square_root(float f) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(f);
#else
  return std::sqrt(f);
#endif
}

template <class Lanes>
TUTTI_DEVICE Vec16 add(const Vec16& a, const Vec16& b) {
  float x[Lanes::kLanes], y[Lanes::kLanes];
  Lanes::unpack(a, x);
  Lanes::unpack(b, y);
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes; ++i) x[i] += y[i];
  return Lanes::pack(x);
}
template <class Lanes>
TUTTI_DEVICE float squares(const Vec16& v) {
  float x[Lanes::kLanes];
  Lanes::unpack(v, x);
  float sum = product(x[0], x[0]);
  TUTTI_UNROLL
  for (int i = 1; i < Lanes::kLanes; ++i) sum += product(x[i], x[i]);
  return sum;
}
// y of the call's description.
template <class Lanes>
TUTTI_DEVICE Vec16 normalised(const Vec16& v, float inverse, const Vec16& weight) {
  float x[Lanes::kLanes], w[Lanes::kLanes];
  Lanes::unpack(v, x);
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes; ++i) x[i] *= inverse;
  Lanes::unpack(Lanes::pack(x), x);
  Lanes::unpack(weight, w);
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes; ++i) x[i] *= w[i];
  return Lanes::pack(x);
}
template <class Lanes>
TUTTI_DEVICE std::uint32_t peak(const Vec16& v) {
  float x[Lanes::kLanes];
  Lanes::unpack(v, x);
  std::uint32_t most = 0;
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes; ++i) most = Largest{}(most, bits_of(x[i]) & 0x7fffffffu);
  return most;
}

// A vector of the rows.
struct RowVector {
  std::size_t row;
  std::size_t column;  // bytes from the row's start
  bool exists;         // not past the row's end, and not of a row that there is not
};
// `task`: a segment of this block's rows, counted over all its chunks.
template <class Team>
TUTTI_DEVICE RowVector row_vector(const Team& team, const AddRmsNormArgs& args, int task, int lane) {
  const auto index = static_cast<std::uint32_t>(task) / static_cast<std::uint32_t>(args.segments);
  const auto segment = static_cast<std::uint32_t>(task) - index * static_cast<std::uint32_t>(args.segments);
  const auto block_rows = static_cast<std::uint32_t>(args.block_rows);
  const std::size_t of_chunk = static_cast<std::size_t>(team.block()) * args.block_rows + index % block_rows;
  RowVector at;
  at.row = index / block_rows * args.chunk_rows + of_chunk;
  at.column = segment * kSegmentBytes + static_cast<std::size_t>(lane) * 16;
  at.exists = of_chunk < args.chunk_rows && at.row < args.rows && at.column < args.row_bytes;
  return at;
}

// 1 / sqrt(mean + epsilon) of the row whose segments' sums start at `sums`. All lanes of a warp.
template <class Team>
TUTTI_DEVICE float inverse_of_row(const Team& team, const AddRmsNormArgs& args, const float* sums) {
  float total[kLanesHere<Team>];
  for (int l = 0; l < kLanesHere<Team>; ++l) {
    total[l] = 0;
    for (int i = lane_of(team, l); i < args.segments; i += kLanes) total[l] += sums[i];
  }
  combine_lanes(total, kLanes, Sum{});
  return 1.0f / square_root(total[0] / args.hidden + args.epsilon);
}
template <class Team>
TUTTI_DEVICE float scale_of_row(const Team& team, const AddRmsNormArgs& args, const std::uint32_t* peaks) {
  std::uint32_t most[kLanesHere<Team>];
  for (int l = 0; l < kLanesHere<Team>; ++l) {
    most[l] = 0;
    for (int i = lane_of(team, l); i < args.segments; i += kLanes) most[l] = Largest{}(most[l], peaks[i]);
  }
  combine_lanes(most, kLanes, Largest{});
  const float scale = float_of(most[0]) / Fp8Code::kLargest;
  return scale < kLeastRowScale ? kLeastRowScale : scale;  // a NaN stays
}

template <class Lanes>
TUTTI_DEVICE void store_output(const AddRmsNormArgs& args, const RowVector& at, const Vec16& y, float scale) {
  const std::size_t offset = at.row * args.row_bytes + at.column;
  if (args.fp8 == 0) return device::store_user(args.output + offset, y, 16);
  float x[Lanes::kLanes];
  Lanes::unpack(y, x);
  Vec16 codes{{0, 0, 0, 0}};
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes; ++i) x[i] = x[i] / scale;
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes / 4; ++i) codes.w[i] = Fp8Code::out(x + 4 * i);
  device::store_user(args.output + offset * Lanes::kLanes / 16, codes, Lanes::kLanes);
}

// Normalises the rows of the segments [first, first + tasks). source.value(i, l, at) is s, source.weight(i, l, at) the
// weight, of vector `at`, which is lane l's of this warp's i-th segment. Workers only, all of them.
template <int kMost, class Lanes, class Team, class Source>
TUTTI_DEVICE void norm_segments(const Team& team, const AddRmsNormArgs& args, int first, int tasks,
                                NormScratch& scratch, const Source& source) {
  constexpr int kHere = kLanesHere<Team>;
  for_warp_tasks<kMost>(team, tasks, [&](int i, int task) {
    float sum[kHere];
    for (int l = 0; l < kHere; ++l) {
      const RowVector at = row_vector(team, args, first + task, lane_of(team, l));
      sum[l] = at.exists ? squares<Lanes>(source.value(i, l, at)) : 0.0f;
    }
    combine_lanes(sum, kLanes, Sum{});
    if (is_first_lane(team)) scratch.sums[task] = sum[0];
  });
  team.sync_workers();
  const auto first_of_row = [&](int task) { return task / args.segments * args.segments; };
  if (args.row_scales != nullptr) {
    for_warp_tasks<kMost>(team, tasks, [&](int i, int task) {
      const float inverse = inverse_of_row(team, args, scratch.sums + first_of_row(task));
      std::uint32_t most[kHere];
      for (int l = 0; l < kHere; ++l) {
        const RowVector at = row_vector(team, args, first + task, lane_of(team, l));
        most[l] =
            at.exists ? peak<Lanes>(normalised<Lanes>(source.value(i, l, at), inverse, source.weight(i, l, at))) : 0;
      }
      combine_lanes(most, kLanes, Largest{});
      if (is_first_lane(team)) scratch.peaks[task] = most[0];
    });
    team.sync_workers();
  }
  for_warp_tasks<kMost>(team, tasks, [&](int i, int task) {
    const float inverse = inverse_of_row(team, args, scratch.sums + first_of_row(task));
    float scale = args.scale != nullptr ? *args.scale : 1.0f;
    if (args.row_scales != nullptr) scale = scale_of_row(team, args, scratch.peaks + first_of_row(task));
    for (int l = 0; l < kHere; ++l) {
      const RowVector at = row_vector(team, args, first + task, lane_of(team, l));
      if (!at.exists) continue;
      store_output<Lanes>(args, at, normalised<Lanes>(source.value(i, l, at), inverse, source.weight(i, l, at)), scale);
      if (args.row_scales != nullptr && at.column == 0) args.row_scales[at.row] = scale;
    }
  });
  team.sync_workers();  // before the scratch is used again
}

// From memory: what this block has written to residual_output.
struct StoredRows {
  const AddRmsNormArgs& args;
  TUTTI_DEVICE Vec16 value(int /*i*/, int /*l*/, const RowVector& at) const {
    return device::load_user(args.residual_output + at.row * args.row_bytes + at.column, 16);
  }
  TUTTI_DEVICE Vec16 weight(int /*i*/, int /*l*/, const RowVector& at) const {
    return device::load_user(args.weight + at.column, 16);
  }
};

// All rows of this block, some at a time. Workers only, after they have stored the sums and met.
template <class Lanes, class Team>
TUTTI_DEVICE void norm_stored_rows(const Team& team, const AddRmsNormArgs& args, NormScratch& scratch) {
  const int total = args.chunks * static_cast<int>(args.block_rows) * args.segments;
  const int batch = kMostSegments / args.segments * args.segments;
  for (int first = 0; first < total; first += batch) {
    norm_segments<0, Lanes>(team, args, first, total - first < batch ? total - first : batch, scratch,
                            StoredRows{args});
  }
}

}  // namespace tutti::cuda
