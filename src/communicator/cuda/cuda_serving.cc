// The calls of include/tutti/serving.h: check, choose, launch, as every other call.
#include "algorithm/cuda/kernels.h"
#include "algorithm/cuda/quantized_launch.h"
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
  NormLaunch norm = make_norm_launch(call, size_, group_->most_blocks(), group_->ll128(), forced_);
  CallRecord record;
  record.sequence = ++sequence_;
  record.call = kCallAddRmsNorm;
  record.dtype = static_cast<std::uint8_t>(call.dtype);
  record.count = call.rows * call.hidden;
  record.tag = call.hidden;
  // What goes over the wire, and the kind of output, in which a difference can only be a mistake.
  const std::uint32_t output = !call.fp8 ? 0 : call.scale != nullptr ? 1 : 2;
  const std::uint32_t way = output << 1 | static_cast<std::uint32_t>(norm.one_kernel);
  record.hash = post(
      record, (number_of(norm.choice) * 0x01000193u ^ way) * 0x01000193u ^ static_cast<std::uint32_t>(call.hidden));
  const auto on = static_cast<cudaStream_t>(stream);
  issue_whole(on, [&] {
    const Launched how = launch_norm(call, norm, record.hash, on);
    log_.issued({record, -1, call.rows * norm.args.row_bytes, name_of(norm), call_timeout_}, how);
  });
}

// Of two kernels, how the first was launched: headers, deadline and ticket are its business. The second waits for
// nobody. Where the first has failed it normalises what it finds, which the failure has declared undefined.
Launched CudaCommunicatorImpl::launch_norm(const AddRmsNorm& call, NormLaunch& norm, std::uint32_t fingerprint,
                                           cudaStream_t stream) {
  if (norm.one_kernel) {
    norm.args.fingerprint = fingerprint;
    return launch(add_rms_norm_kernel_of(norm.aligned, call.dtype), norm.blocks, norm.threads, norm.args,
                  Lane::kCollectives, stream);
  }
  const Launched how = launch_collective(sum_of(call, norm), norm.choice, fingerprint, stream);
  void* parameters[] = {&norm.args};
  check_cuda(cudaLaunchKernel(norm_kernel_of(norm.vectors, call.dtype), dim3(static_cast<unsigned>(norm.blocks)),
                              dim3(static_cast<unsigned>(norm.threads)), parameters, 0, stream),
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
  QuantizedLaunch quantized = make_quantized_launch(call, size_, group_->most_blocks(), forced_);
  CallRecord record;
  record.sequence = ++sequence_;
  record.call = kCallQuantized;
  record.dtype = static_cast<std::uint8_t>(call.dtype);
  record.count = call.count;
  record.tag = static_cast<std::uint64_t>(call.block);
  const std::uint32_t choice =
      static_cast<std::uint32_t>(quantized.pattern) | static_cast<std::uint32_t>(quantized.args.int8) << 2 |
      static_cast<std::uint32_t>(quantized.blocks) << 3 | static_cast<std::uint32_t>(call.block) << 10;
  record.hash = quantized.args.fingerprint = post(record, choice);
  const auto on = static_cast<cudaStream_t>(stream);
  issue_whole(on, [&] {
    const Launched how = launch(quantized_kernel_of(quantized.pattern, call.dtype), quantized.blocks, quantized.threads,
                                quantized.args, Lane::kCollectives, on);
    log_.issued({record, -1, call.count * size_of(call.dtype), name_of(choice_of(quantized)), call_timeout_}, how);
  });
}

}  // namespace tutti::cuda
