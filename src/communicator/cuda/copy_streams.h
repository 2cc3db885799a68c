// The streams on which a communicator's copies run beside each other: forked from the caller's stream and joined to it.
//
// In a stream that is being captured the copies become nodes of its graph, side by side behind what was captured last,
// and no stream of ours joins the capture: it would stay in it until its end, out of reach for calls outside.
//
// Thread rule: one thread at a time. Ownership: owns streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "algorithm/cuda/copy_plan.h"

namespace tutti::cuda {

class CopyStreams {
 public:
  CopyStreams() = default;
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // Makes what issue() needs, on the current device, for `ranks` ranks. Nothing if it is there.
  void prepare(int ranks);
  // Enqueues the copies: after what `stream` holds, before what follows on it. At most one a peer.
  void issue(const std::vector<PlannedCopy>& copies, cudaStream_t stream);

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  void fork(const std::vector<PlannedCopy>& copies, cudaStream_t stream);

  cudaEvent_t forked_ = nullptr;
  std::vector<Lane> lanes_;  // by peer
};

}  // namespace tutti::cuda
