// A matrix multiplication that keeps every multiprocessor busy: what a model computes while a collective runs.
#pragma once

#include <cuda_runtime.h>

namespace tutti::bench {

inline constexpr int kTile = 128;  // of the product, a block; n is a multiple of it
inline constexpr int kDepth = 8;
inline constexpr int kMatmulThreads = 256;  // 16 x 16, each with 8 x 8 elements

// c = a * b, n x n, fp32, row by row. Grid (n / kTile, n / kTile).
__global__ void __launch_bounds__(kMatmulThreads) matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float left[kDepth][kTile], right[kDepth][kTile];
  const int thread = static_cast<int>(threadIdx.x), row = thread / 16 * 8, column = thread % 16 * 8;
  const int top = static_cast<int>(blockIdx.y) * kTile, first = static_cast<int>(blockIdx.x) * kTile;
  float sum[8][8] = {};
  for (int k = 0; k < n; k += kDepth) {
    for (int i = thread; i < kTile * kDepth; i += kMatmulThreads) {
      left[i % kDepth][i / kDepth] = a[static_cast<long>(top + i / kDepth) * n + k + i % kDepth];
      right[i / kTile][i % kTile] = b[static_cast<long>(k + i / kTile) * n + first + i % kTile];
    }
    __syncthreads();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      float x[8], y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[i] = left[d][row + i];
        y[i] = right[d][column + i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] += x[i] * y[j];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) c[static_cast<long>(top + row + i) * n + first + column + j] = sum[i][j];
  }
}

}  // namespace tutti::bench
