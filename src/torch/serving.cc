#include "torch/serving.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include "aten/cuda_streams.h"
#include "aten/errors.h"
#include "aten/tensors.h"

namespace tutti::face {
namespace {

// Contiguous memory on the GPU of `like`.
void require_contiguous(const at::Tensor& tensor, const at::Tensor& like, const char* name, const char* call) {
  require_dense(tensor, call);
  if (!tensor.is_cuda() || tensor.device() != like.device() || !tensor.is_contiguous()) {
    refuse(std::string(call) + ": " + name + " must be contiguous and on the input's GPU");
  }
}

void require_count(const at::Tensor& tensor, int64_t count, const char* name, const char* call) {
  if (tensor.numel() == count) return;
  refuse(std::string(call) + ": " + name + " must have " + std::to_string(count) + " elements, not " +
         std::to_string(tensor.numel()));
}

void require_float(const at::Tensor& tensor, const char* name, const char* call) {
  if (tensor.scalar_type() == at::kFloat) return;
  refuse(std::string(call) + ": " + name + " must be float32");
}

// issue(serving, stream) on the current stream, or on the group's where that one may not last.
template <typename Issue>
void on_current_stream(ProcessGroupTutti& group, c10::Device device, Issue&& issue) {
  translated([&] {
    const CudaLane& lane = group.cuda().group(device);
    std::optional<OnSideStream> side;
    if (!lasts(current_cuda_stream(device))) side.emplace(lane.events, lane.stream, /*join=*/true);
    Serving* const serving = lane.communicator->serving();
    if (serving == nullptr) throw_error(ErrorKind::kUnsupported, "this device has no calls of inference engines");
    issue(*serving, current_cuda_stream(device).native_handle());
  });
}

}  // namespace

void all_reduce_add_rms_norm(ProcessGroupTutti& group, const at::Tensor& input, const at::Tensor& residual,
                             const at::Tensor& weight, double epsilon, const at::Tensor& residual_output,
                             const at::Tensor& output, const std::optional<at::Tensor>& scale,
                             const std::optional<at::Tensor>& row_scales) {
  constexpr const char* kCall = "all_reduce_add_rms_norm";
  if (input.dim() == 0) refuse(std::string(kCall) + ": input must have a last dimension to normalise over");
  AddRmsNorm call;
  call.hidden = static_cast<std::size_t>(input.size(-1));
  call.rows = call.hidden == 0 ? 0 : static_cast<std::size_t>(input.numel()) / call.hidden;
  call.dtype = to_dtype(input.scalar_type());
  call.epsilon = static_cast<float>(epsilon);
  call.fp8 = output.scalar_type() == at::kFloat8_e4m3fn;
  require_contiguous(input, input, "input", kCall);
  for (const auto& [tensor, name] : {std::pair(&residual, "residual"), std::pair(&residual_output, "residual_output"),
                                     std::pair(&output, "output"), std::pair(&weight, "weight")}) {
    require_contiguous(*tensor, input, name, kCall);
    require_count(*tensor, tensor == &weight ? input.size(-1) : input.numel(), name, kCall);
    if (!call.fp8 || tensor != &output) require_same_dtype(*tensor, input, kCall);
  }
  if (scale.has_value()) {
    require_contiguous(*scale, input, "scale", kCall);
    require_count(*scale, 1, "scale", kCall);
    require_float(*scale, "scale", kCall);
    call.scale = static_cast<const float*>(scale->const_data_ptr());
  }
  if (row_scales.has_value()) {
    require_contiguous(*row_scales, input, "row_scales", kCall);
    require_count(*row_scales, static_cast<int64_t>(call.rows), "row_scales", kCall);
    require_float(*row_scales, "row_scales", kCall);
    call.row_scales = static_cast<float*>(row_scales->mutable_data_ptr());
  }
  call.input = input.const_data_ptr();
  call.residual = residual.const_data_ptr();
  call.weight = weight.const_data_ptr();
  call.residual_output = residual_output.mutable_data_ptr();
  call.output = output.mutable_data_ptr();
  const c10::DeviceGuard on_device(input.device());
  // Used on the current stream alone, so the allocator may have it back at once.
  at::Tensor workspace;
  if (call.fp8 && call.residual_output == call.residual) {
    workspace = at::empty_like(input);
    call.workspace = workspace.mutable_data_ptr();
  }
  on_current_stream(group, input.device(),
                    [&](Serving& serving, DeviceStream stream) { serving.all_reduce_add_rms_norm(call, stream); });
}

void all_reduce_quantized(ProcessGroupTutti& group, const at::Tensor& output, const at::Tensor& input,
                          const std::string& bits, int block) {
  constexpr const char* kCall = "all_reduce_quantized";
  require_contiguous(input, input, "input", kCall);
  require_contiguous(output, input, "output", kCall);
  require_same_dtype(output, input, kCall);
  require_count(output, input.numel(), "output", kCall);
  if (bits != "fp8" && bits != "int8") refuse(std::string(kCall) + ": bits must be \"fp8\" or \"int8\"");
  QuantizedAllReduce call;
  call.dtype = to_dtype(input.scalar_type());
  call.code = bits == "fp8" ? DataType::kFloat8E4M3fn : DataType::kInt8;
  call.block = block;
  call.count = static_cast<std::size_t>(input.numel());
  call.input = input.const_data_ptr();
  call.output = output.mutable_data_ptr();
  const c10::DeviceGuard on_device(input.device());
  on_current_stream(group, input.device(),
                    [&](Serving& serving, DeviceStream stream) { serving.all_reduce_quantized(call, stream); });
}

}  // namespace tutti::face
