// CudaCommunicator's calls that run a plan: choose, cut into segments, launch.
#include "algorithm/cuda/kernels.h"
#include "communicator/cuda/cuda_communicator_impl.h"

namespace tutti::cuda {

// Null: no plan serves the call, or Tutti's own kernels are forced.
const DevicePlans::Entry* CudaCommunicatorImpl::plan_of(const Call& call) const {
  return plans_ == nullptr || forced_ ? nullptr : plans_->choose(call);
}

void CudaCommunicatorImpl::run_plan(const Call& call, const DevicePlans::Entry& plan, cudaStream_t stream) {
  if (plans_->crowded() && !is_capturing(stream)) {
    collectives_.wait();  // kernels under way read the records
    plans_->drop();
  }
  const CallRecord record = record_of(call, plan.identity);
  const void* kernel = plan_kernel_of(reduces(call.collective) ? reducer_of(call.dtype, call.op) : Reducer::kSumF32);
  const std::size_t bytes = agreed_bytes(call, size_);
  Launched last;
  for (std::size_t begin = 0; begin < bytes; begin += plan.device->segment_bytes()) {
    executor::PlanArgs args = plans_->args(plan, call, begin);
    args.fingerprint = record.hash;
    last = launch(kernel, plan.device->blocks(), plan.device->threads(), args, Lane::kCollectives, stream);
  }
  if (last.captured) {
    plans_->keep_records();
    collectives_.retain(stream, plans_);
  }
  log(call, record, plan.name, last);
}

}  // namespace tutti::cuda
