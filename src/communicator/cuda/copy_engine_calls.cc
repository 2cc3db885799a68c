// CudaCommunicator's calls on copy engines, on memory that all ranks map.
//
// A kernel in which all ranks meet, copies side by side, a kernel in which they meet again
// (algorithm/cuda/peer_copies.h). The kernels take one block for some microseconds, the copies between GPUs no
// multiprocessor at all. The second kernel's fingerprint differs from the first one's, so a rank that is a step behind
// is a mismatch.
//
// Failures. Copies are issued without a condition: whether the first meeting has failed is known on the device only.
// Then they run all the same, into mapped memory, at a time when a peer may still use it: the outputs are undefined, as
// after every failure, and so is what else the call's buffers hold. The second kernel returns at once.
#include "algorithm/cuda/kernels.h"
#include "algorithm/cuda/meet.cuh"
#include "algorithm/cuda/peer_copies.h"
#include "communicator/cuda/cuda_communicator_impl.h"

namespace tutti::cuda {

bool CudaCommunicatorImpl::uses_copy_engines(const Call& call) const {
  return choose_copy_engine(call, size_, group_->between_gpus(), forced_);
}

void CudaCommunicatorImpl::run_by_copy_engines(const Call& call, const DirectPlace& place, std::byte* const* inputs,
                                               std::byte* const* outputs, cudaStream_t stream) {
  copy_streams_.prepare(rank_);
  const bool reduce = call.collective == Collective::kAllReduce;
  const int blocks = reduce ? direct_blocks() : 1;
  const CallRecord record = next_record(call, choice_of(place, blocks, DirectWay::kFirstMeeting));
  registrations_.remember(record.hash, place);
  if (reduce) {
    DirectArgs args = make_reduce_half(call, rank_, size_, blocks, inputs, outputs, record.hash);
    launch(direct_kernel(Collective::kReduceScatter, reducer_of(call.dtype, call.op)), blocks, kDirectWorkers, args,
           Lane::kCollectives, stream);
  } else {
    meet_ranks(record.hash, stream);
  }
  copy_streams_.issue(peer_copies(call, rank_, size_, inputs, outputs), stream);
  log(call, record, "copy_engine",
      meet_ranks(post(record, choice_of(place, blocks, DirectWay::kSecondMeeting)), stream));
}

Launched CudaCommunicatorImpl::meet_ranks(std::uint32_t fingerprint, cudaStream_t stream) {
  MeetArgs args{fingerprint};
  return launch(meet_kernel(), 1, 32, args, Lane::kCollectives, stream);
}

}  // namespace tutti::cuda
