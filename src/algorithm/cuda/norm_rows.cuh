// The norm of rows by one block: what both ways of all_reduce_add_rms_norm do with the sums. add_and_norm() is the
// second of two kernels, behind an all-reduce; add_rms_norm.cuh sums by itself.
//
// The order of additions is fixed by the row alone, so every kernel, on every rank and on the host, gives the same
// bits: within 16 bytes in order; over the 32 vectors of a segment as a tree; over the segments of a row 32 apart in
// order, then as a tree. Divisions and the square root are those of IEEE.
#pragma once

#include "algorithm/cuda/add_rms_norm_args.h"
#include "algorithm/cuda/warp.cuh"
#include "device/cuda/codes.cuh"
#include "device/cuda/reducers.cuh"
#include "tutti/serving.h"

#if !defined(__CUDA_ARCH__)
#include <cmath>
#endif

namespace tutti::cuda {

// In shared memory of the block; by segment of the rows that are normalised together.
struct NormScratch {
  float sums[kMostSegments];
  std::uint32_t peaks[kMostSegments];  // bits of the largest |y|
};

struct alignas(8) Pair32 {
  std::uint32_t a, b;
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
// `task`: a segment of this block's rows.
template <class Team>
TUTTI_DEVICE RowVector row_vector(const Team& team, const AddRmsNormArgs& args, int task, int lane) {
  const auto index = static_cast<std::uint32_t>(task) / static_cast<std::uint32_t>(args.segments);
  const auto segment = static_cast<std::uint32_t>(task) - index * static_cast<std::uint32_t>(args.segments);
  RowVector at;
  at.row = static_cast<std::size_t>(team.block()) * args.block_rows + index;
  at.column = segment * kSegmentBytes + static_cast<std::size_t>(lane) * 16;
  at.exists = at.row < args.rows && at.column < args.row_bytes;
  return at;
}
// Calls f(i, l, at) for the vectors that there are of this thread's tasks out of `tasks`.
template <int kMost, class Team, class F>
TUTTI_DEVICE void for_row_vectors(const Team& team, const AddRmsNormArgs& args, int tasks, F f) {
  for_warp_tasks<kMost>(team, tasks, [&](int i, int task) {
    for (int l = 0; l < kLanesHere<Team>; ++l) {
      const RowVector at = row_vector(team, args, task, lane_of(team, l));
      if (at.exists) f(i, l, at);
    }
  });
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

// kAligned: all of the caller's memory is aligned to 16 bytes, as the host has found. The tests of every access would
// keep loads from being under way together.
template <bool kAligned>
TUTTI_DEVICE Vec16 load_row(const std::byte* p) {
  if constexpr (kAligned) return *reinterpret_cast<const Vec16*>(p);
  return device::load_user(p, 16);
}
template <bool kAligned>
TUTTI_DEVICE void store_row(std::byte* p, const Vec16& v) {
  if constexpr (kAligned) {
    *reinterpret_cast<Vec16*>(p) = v;
  } else {
    device::store_user(p, v, 16);
  }
}
// The codes of a vector: 8 bytes, or of fp32 4.
template <bool kAligned, int kBytes>
TUTTI_DEVICE void store_codes(std::byte* p, const Vec16& v) {
  if constexpr (!kAligned) {
    device::store_user(p, v, kBytes);
  } else if constexpr (kBytes == 4) {
    *reinterpret_cast<std::uint32_t*>(p) = v.w[0];
  } else {
    *reinterpret_cast<Pair32*>(p) = Pair32{v.w[0], v.w[1]};
  }
}

template <bool kAligned, class Lanes>
TUTTI_DEVICE void store_output(const AddRmsNormArgs& args, const RowVector& at, const Vec16& y, float scale) {
  const std::size_t offset = at.row * args.row_bytes + at.column;
  if (args.fp8 == 0) return store_row<kAligned>(args.output + offset, y);
  float x[Lanes::kLanes];
  Lanes::unpack(y, x);
  Vec16 codes{{0, 0, 0, 0}};
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes; ++i) x[i] = x[i] / scale;
  TUTTI_UNROLL
  for (int i = 0; i < Lanes::kLanes / 4; ++i) codes.w[i] = Fp8Code::out(x + 4 * i);
  store_codes<kAligned, Lanes::kLanes>(args.output + offset * Lanes::kLanes / 16, codes);
}

// Given for all rows, or 1.
TUTTI_DEVICE float given_scale(const AddRmsNormArgs& args) { return args.scale != nullptr ? *args.scale : 1.0f; }

// Normalises the rows of the segments [first, first + tasks). source.value(i, l, at) is s, source.weight(i, l, at) the
// weight, of vector `at`, which is lane l's of this warp's i-th segment. Workers only, all of them.
template <int kMost, bool kAligned, class Lanes, class Team, class Source>
TUTTI_DEVICE void norm_segments(const Team& team, const AddRmsNormArgs& args, int first, int tasks,
                                NormScratch& scratch, const Source& source, float given) {
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
  int known = -1;  // the row whose inverse is at hand: often that of the warp's next segment
  float inverse = 0;
  const auto find_inverse = [&](int task) {
    if (first_of_row(task) == known) return;
    known = first_of_row(task);
    inverse = inverse_of_row(team, args, scratch.sums + known);
  };
  if (args.row_scales != nullptr) {
    for_warp_tasks<kMost>(team, tasks, [&](int i, int task) {
      find_inverse(task);
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
    find_inverse(task);
    const float scale =
        args.row_scales != nullptr ? scale_of_row(team, args, scratch.peaks + first_of_row(task)) : given;
    for (int l = 0; l < kHere; ++l) {
      const RowVector at = row_vector(team, args, first + task, lane_of(team, l));
      if (!at.exists) continue;
      const Vec16 y = normalised<Lanes>(source.value(i, l, at), inverse, source.weight(i, l, at));
      store_output<kAligned, Lanes>(args, at, y, scale);
      if (args.row_scales != nullptr && at.column == 0) args.row_scales[at.row] = scale;
    }
  });
}

// The rows of a block in the registers of its threads, kVectors vectors a thread.
template <int kVectors, bool kAligned, class Team>
struct HeldRows {
  static constexpr int kHere = kLanesHere<Team>;
  // On the host one thread is all warps.
  static constexpr int kTasks = kVectors * (Team::kOnDevice ? 1 : kNormThreads / kLanes);
  Vec16 values[kTasks * kHere];
  Vec16 residuals[kTasks * kHere];
  Vec16 weights[kTasks * kHere];

  // All loads are under way before the first is waited for.
  TUTTI_DEVICE void load(const Team& team, const AddRmsNormArgs& args, int tasks) {
    for_row_vectors<kTasks>(team, args, tasks, [&](int i, int l, const RowVector& at) {
      const std::size_t offset = at.row * args.row_bytes + at.column;
      values[i * kHere + l] = load_row<kAligned>(args.input + offset);
      residuals[i * kHere + l] = load_row<kAligned>(args.residual + offset);
      weights[i * kHere + l] = load_row<kAligned>(args.weight + at.column);
    });
  }
  // The sum of vector `at` becomes s.
  template <class Lanes>
  TUTTI_DEVICE void add_residual(const AddRmsNormArgs& args, int i, int l, const RowVector& at, const Vec16& sum) {
    const Vec16 s = add<Lanes>(sum, residuals[i * kHere + l]);
    store_row<kAligned>(args.residual_output + at.row * args.row_bytes + at.column, s);
    values[i * kHere + l] = s;
  }
  TUTTI_DEVICE const Vec16& value(int i, int l, const RowVector& /*at*/) const { return values[i * kHere + l]; }
  TUTTI_DEVICE const Vec16& weight(int i, int l, const RowVector& /*at*/) const { return weights[i * kHere + l]; }
};

// Rows that no registers hold: what this block has written to residual_output.
struct StoredRows {
  const AddRmsNormArgs& args;
  TUTTI_DEVICE Vec16 value(int /*i*/, int /*l*/, const RowVector& at) const {
    return device::load_user(args.residual_output + at.row * args.row_bytes + at.column, 16);
  }
  TUTTI_DEVICE Vec16 weight(int /*i*/, int /*l*/, const RowVector& at) const {
    return device::load_user(args.weight + at.column, 16);
  }
};

// Adds the residual to the sums in args.input and normalises this block's rows. Registers hold them, kVectors a thread,
// which takes aligned memory; with 0 they are read again, and any memory will do. The sums may lie in the output or in
// residual_output: each element is read by the thread that writes it, before it does. All threads are workers.
template <int kVectors, class Lanes, class Team>
TUTTI_DEVICE void add_and_norm(const Team& team, const AddRmsNormArgs& args, NormScratch& scratch) {
  const int tasks = static_cast<int>(args.block_rows) * args.segments;
  const float given = given_scale(args);
  if constexpr (kVectors > 0) {
    using Held = HeldRows<kVectors, true, Team>;
    Held held;
    held.load(team, args, tasks);
    for_row_vectors<Held::kTasks>(team, args, tasks, [&](int i, int l, const RowVector& at) {
      held.template add_residual<Lanes>(args, i, l, at, held.value(i, l, at));
    });
    norm_segments<Held::kTasks, true, Lanes>(team, args, 0, tasks, scratch, held, given);
  } else {
    for_row_vectors<0>(team, args, tasks, [&](int /*i*/, int /*l*/, const RowVector& at) {
      const std::size_t offset = at.row * args.row_bytes + at.column;
      const Vec16 residual = device::load_user(args.residual + offset, 16);
      device::store_user(args.residual_output + offset,
                         add<Lanes>(device::load_user(args.input + offset, 16), residual), 16);
    });
    team.sync_workers();
    const int batch = kMostSegments / args.segments * args.segments;
    for (int first = 0; first < tasks; first += batch) {
      norm_segments<0, false, Lanes>(team, args, first, tasks - first < batch ? tasks - first : batch, scratch,
                                     StoredRows{args}, given);
      team.sync_workers();  // before the scratch is used again
    }
  }
}

}  // namespace tutti::cuda
