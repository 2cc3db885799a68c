// What the kernels that normalise are told: a value made by the host for each call.
//
// Rows are cut between blocks as a whole: block b has the rows from b * block_rows on, and normalises them without
// another block.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

// A row is cut into segments of 512 bytes: what a warp handles at a time.
inline constexpr std::size_t kSegmentBytes = 512;
// Of the rows that a block normalises at a time.
inline constexpr int kMostSegments = 1024;
inline constexpr int kNormThreads = 512;
// Vectors of 16 bytes that a thread of the second kernel holds; 0: the rows are read again, from any alignment.
inline constexpr int kNormVectors[] = {1, 2, 4, 0};
// Of all rows of a block of the kernel that also sums: one for each warp of kNormThreads. A slot of LL holds them.
inline constexpr int kHeldSegments = 16;

struct AddRmsNormArgs {
  const std::byte* input = nullptr;  // of one kernel: this rank's; of two: the sums
  const std::byte* residual = nullptr;
  const std::byte* weight = nullptr;
  std::byte* residual_output = nullptr;
  std::byte* output = nullptr;
  const float* scale = nullptr;
  float* row_scales = nullptr;
  std::size_t rows = 0;
  std::size_t row_bytes = 0;  // a multiple of 16
  std::size_t block_rows = 0;
  int segments = 1;  // of a row
  float hidden = 1;  // elements of a row
  float epsilon = 0;
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  int fp8 = 0;               // the output's elements
};

}  // namespace tutti::cuda
