// The calls of inference engines (tutti/serving.h) on CUDA tensors. Enqueued on the current stream; nothing is
// kept: as with any kernel, memory that is freed after the call is reused in stream order.
//
// Errors: ValueError for shapes and TypeError for dtypes that do not fit together, DistBackendError for a group that
// has failed.
#pragma once

#include <optional>
#include <string>

#include "torch/process_group.h"

namespace tutti::face {

// `input`, `residual`, `residual_output`, `output`: (..., hidden), contiguous; `weight`: (hidden,). `scale` (one fp32
// value) or `row_scales` (fp32, a value a row, written) for an `output` of float8_e4m3fn.
void all_reduce_add_rms_norm(ProcessGroupTutti& group, const at::Tensor& input, const at::Tensor& residual,
                             const at::Tensor& weight, double epsilon, const at::Tensor& residual_output,
                             const at::Tensor& output, const std::optional<at::Tensor>& scale,
                             const std::optional<at::Tensor>& row_scales);

// `bits`: "fp8" or "int8".
void all_reduce_quantized(ProcessGroupTutti& group, const at::Tensor& output, const at::Tensor& input,
                          const std::string& bits, int block);

}  // namespace tutti::face
