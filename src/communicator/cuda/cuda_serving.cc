// The calls of include/tutti/serving.h: check, plan, launch, as every other call.
#include "algorithm/cuda/kernels.h"
#include "algorithm/cuda/plan_quantized.h"
#include "communicator/cuda/cuda_communicator_impl.h"
#include "device/cuda/cuda_check.h"

namespace tutti::cuda {

void CudaCommunicatorImpl::all_reduce_add_rms_norm(const AddRmsNorm& call, CudaStream stream,
                                                   std::chrono::milliseconds timeout) {
  require_collectives();
  check_add_rms_norm(call);
  const DeviceGuard guard(group_->device());
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  call_timeout_ = timeout;
  NormPlan plan = plan_add_rms_norm(call, size_, group_->most_blocks(), group_->ll128(), forced_);
  CallRecord record;
  record.sequence = ++sequence_;
  record.call = kCallAddRmsNorm;
  record.dtype = static_cast<std::uint8_t>(call.dtype);
  record.count = call.rows * call.hidden;
  record.tag = call.hidden;
  // What goes over the wire, and the kind of output, in which a difference can only be a mistake.
  const std::uint32_t output = !call.fp8 ? 0 : call.scale != nullptr ? 1 : 2;
  const std::uint32_t way = output << 1 | static_cast<std::uint32_t>(plan.one_kernel);
  record.hash = post(
      record, (number_of(plan.choice) * 0x01000193u ^ way) * 0x01000193u ^ static_cast<std::uint32_t>(call.hidden));
  const Launched how = launch_norm(call, plan, record.hash, static_cast<cudaStream_t>(stream));
  log_.issued({record, -1, call.rows * plan.args.row_bytes, name_of(plan), call_timeout_}, how);
}

// Of two kernels, how the first was launched: headers, deadline and ticket are its business. The second waits for
// nobody. Where the first has failed it normalises what it finds, which the failure has declared undefined.
Launched CudaCommunicatorImpl::launch_norm(const AddRmsNorm& call, NormPlan& plan, std::uint32_t fingerprint,
                                           cudaStream_t stream) {
  if (plan.one_kernel) {
    plan.args.fingerprint = fingerprint;
    return launch(add_rms_norm_kernel_of(plan.aligned, call.dtype), plan.blocks, plan.threads, plan.args,
                  Lane::kCollectives, stream);
  }
  const Launched how = launch_collective(sum_of(call, plan), plan.choice, fingerprint, stream);
  void* parameters[] = {&plan.args};
  check_cuda(cudaLaunchKernel(norm_kernel_of(plan.vectors, call.dtype), dim3(static_cast<unsigned>(plan.blocks)),
                              dim3(static_cast<unsigned>(plan.threads)), parameters, 0, stream),
             "cudaLaunchKernel");
  collectives_.after(stream, how.captured);
  return how;
}

void CudaCommunicatorImpl::all_reduce_quantized(const QuantizedAllReduce& call, CudaStream stream,
                                                std::chrono::milliseconds timeout) {
  require_collectives();
  check_quantized(call);
  const DeviceGuard guard(group_->device());
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  call_timeout_ = timeout;
  QuantizedPlan plan = plan_quantized(call, size_, group_->most_blocks(), forced_);
  CallRecord record;
  record.sequence = ++sequence_;
  record.call = kCallQuantized;
  record.dtype = static_cast<std::uint8_t>(call.dtype);
  record.count = call.count;
  record.tag = static_cast<std::uint64_t>(call.block);
  const std::uint32_t choice =
      static_cast<std::uint32_t>(plan.pattern) | static_cast<std::uint32_t>(plan.args.int8) << 2 |
      static_cast<std::uint32_t>(plan.blocks) << 3 | static_cast<std::uint32_t>(call.block) << 10;
  record.hash = plan.args.fingerprint = post(record, choice);
  const Launched how = launch(quantized_kernel_of(plan.pattern, call.dtype), plan.blocks, plan.threads, plan.args,
                              Lane::kCollectives, static_cast<cudaStream_t>(stream));
  log_.issued({record, -1, call.count * size_of(call.dtype), name_of(choice_of(plan)), call_timeout_}, how);
}

}  // namespace tutti::cuda
