// The c10d::Work of calls on CUDA tensors: what has been enqueued on a stream, not what has been done.
//
// wait() makes the caller's current stream wait, not the host, as ProcessGroupNCCL's does; with a timeout it waits on
// the host. A synchronous call runs on the current stream and has nothing to wait for. An asynchronous one runs on a
// stream of the group and keeps its tensors until wait(): their memory must not be given to others before the stream
// has passed the call. If nobody waits, the allocator is told of that stream instead.
//
// Thread rule: all members from any thread.
#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "aten/cuda_side.h"
#include "torch/work.h"
#include "tutti/stream_communicator.h"

namespace tutti::face {

class CudaWork final : public c10d::Work {
 public:
  // The call of the lane's communicator, one of `group`, has been enqueued on `stream`, which is the caller's own
  // unless `side`.
  CudaWork(int rank, c10d::OpType op, std::weak_ptr<Communicator> group, const CudaLane& lane, c10::Stream stream,
           bool side, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs);
  ~CudaWork() override;

  // Of an asynchronous call, before the work is handed out: also stays until wait().
  void keep(const at::Tensor& tensor);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override { return {outputs_.begin(), outputs_.end()}; }
  FuturePtr getFuture() override;

 private:
  const CudaEvent& end();
  void throw_failure() const;

  const std::weak_ptr<Communicator> group_;  // to abort it
  const StreamCommunicatorPtr communicator_;
  const CudaEventsPtr events_;
  const c10::Stream stream_;
  const bool side_;
  Outputs outputs_;
  std::vector<at::Tensor> stash_;  // guarded by mutex_
  std::optional<CudaEvent> end_;   // of a synchronous call made when somebody asks; guarded by mutex_
  FuturePtr future_;               // guarded by mutex_
};

}  // namespace tutti::face
