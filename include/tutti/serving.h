// What inference engines ask of a StreamCommunicator beside the collectives: an all-reduce that also adds a residual
// and normalises, and one that sends 8 bits an element.
//
// Both are collectives: all ranks make the same calls in the same order. Each is one call to metrics and the flight
// recorder, runs on the caller's stream, can be captured in a graph, and fails as StreamCommunicator::run() does.
#pragma once

#include <chrono>
#include <cstddef>

#include "tutti/types.h"

namespace tutti {

// For each of `rows` rows of `hidden` elements, with the arithmetic of inference engines:
//   s   = round(round(sum of all ranks' input) + residual)       to dtype; the sum has all_reduce's bits
//   y   = round(round(s / sqrt(mean(s * s) + epsilon)) * weight)  the mean in fp32, s widened
//   residual_output = s;  output = y, or in fp8: saturated(y / scale)
// All ranks get the same bits, whatever kernels run, if they give the same residual and weight; those of a row do not
// depend on the number of rows.
//
// Small rows take one kernel, others an all-reduce and a kernel behind it: src/algorithm/cuda/norm_launch.h.
//
// Memory of this rank's device, contiguous, of any alignment. residual_output may be residual, and output may be input
// if both have one dtype; other overlap is refused or undefined. After a failure the outputs and the workspace are
// undefined.
struct AddRmsNorm {
  DataType dtype = DataType::kBfloat16;  // of input, residual and weight: bf16, fp16 or fp32
  std::size_t rows = 0;
  std::size_t hidden = 0;  // a row is a multiple of 16 bytes, at most 512 KB
  const void* input = nullptr;
  const void* residual = nullptr;
  const void* weight = nullptr;
  float epsilon = 1e-6f;
  void* residual_output = nullptr;
  void* output = nullptr;
  // fp8 (e4m3fn) output. One of the two, in device memory:
  bool fp8 = false;
  const float* scale = nullptr;  // one value, read by the kernel
  float* row_scales = nullptr;   // [rows], written: max(largest |y| of the row / 448, kLeastRowScale)
  // Of the input's size, overwritten. Needed for an fp8 output if residual_output is residual, which leaves no other
  // place for the sums; else not looked at.
  void* workspace = nullptr;
};
// As inference engines choose it.
inline constexpr float kLeastRowScale = 1.0f / (448.0f * 512.0f);

// output = sum of all ranks' input, with every block of `block` elements sent as 8-bit codes and one fp32 scale.
// docs/gpu.md gives the bound of the error. All ranks get the same bits. output may be input.
struct QuantizedAllReduce {
  DataType dtype = DataType::kBfloat16;     // bf16, fp16 or fp32
  DataType code = DataType::kFloat8E4M3fn;  // or kInt8
  int block = 128;                          // 32, 64, 128, 256 or 512
  std::size_t count = 0;
  const void* input = nullptr;
  void* output = nullptr;
};

class Serving {
 public:
  virtual ~Serving() = default;
  // `stream`: as DeviceStream.
  virtual void all_reduce_add_rms_norm(const AddRmsNorm& call, void* stream,
                                       std::chrono::milliseconds timeout = {}) = 0;
  virtual void all_reduce_quantized(const QuantizedAllReduce& call, void* stream,
                                    std::chrono::milliseconds timeout = {}) = 0;
};

}  // namespace tutti
