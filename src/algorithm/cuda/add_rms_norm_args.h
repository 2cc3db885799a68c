// What the kernels of add_rms_norm.cuh are told: a value made by the host for each call.
//
// Rows are cut between ranks and blocks as a whole: of every chunk of `chunk_rows` rows (one of all rows in one shot,
// one a rank in two), block b has the rows from b * block_rows on. So a block that has all ranks' sums of its rows can
// normalise them without another block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

// A row is cut into segments of 512 bytes: what a warp handles at a time.
inline constexpr std::size_t kSegmentBytes = 512;
// Of the rows that a block normalises at a time.
inline constexpr int kMostSegments = 1024;
// Of all rows of a block, where their sums stay in registers: two for each warp of kNormThreads.
inline constexpr int kHeldSegments = 32;
inline constexpr int kNormThreads = 512;

// How the data move: what there is a kernel for.
enum class NormPattern { kLL, kLL128, kLLTwoShot, kLL128TwoShot, kBulk };
inline constexpr int kNormPatterns = 5;

struct AddRmsNormArgs {
  const std::byte* input = nullptr;
  const std::byte* residual = nullptr;
  const std::byte* weight = nullptr;
  std::byte* residual_output = nullptr;
  std::byte* output = nullptr;
  const float* scale = nullptr;
  float* row_scales = nullptr;
  std::size_t rows = 0;
  std::size_t row_bytes = 0;  // a multiple of 16
  std::size_t chunk_rows = 0;
  std::size_t block_rows = 0;
  std::size_t piece_bytes = 0;  // bulk: what a block moves at a time
  int chunks = 1;
  int segments = 1;  // of a row
  float hidden = 1;  // elements of a row
  float epsilon = 0;
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  int fp8 = 0;               // the output's elements
};

}  // namespace tutti::cuda
