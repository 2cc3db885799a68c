// The streams on which a communicator's copies run: forked from the caller's stream and joined to it.
//
// Copies to peers run one after another: side by side they take turns on the links, and all of them take 1.5 times as
// long (docs/performance.md). A copy at home runs beside them.
//
// In a stream that is being captured the copies become nodes of its graph behind what was captured last, and no stream
// of ours joins the capture: it would stay in it until its end, out of reach for calls outside.
//
// Thread rule: one thread at a time. Ownership: owns streams and events.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <vector>

#include "algorithm/cuda/peer_copies.h"

namespace tutti::cuda {

class CopyStreams {
 public:
  CopyStreams() = default;
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  // Makes what issue() needs, on the current device, for this rank. Nothing if it is there.
  void prepare(int rank);
  // Enqueues the copies: after what `stream` holds, before what follows on it.
  void issue(const std::vector<PeerCopy>& copies, cudaStream_t stream);

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t done = nullptr;
  };
  // 0: to the peers; 1: at home.
  std::size_t lane_of(const PeerCopy& copy) const { return copy.peer == rank_ ? 1 : 0; }
  void fork(const std::vector<PeerCopy>& copies, cudaStream_t stream);
  void add_nodes(const std::vector<PeerCopy>& copies, cudaStream_t stream, cudaGraph_t graph,
                 const std::vector<cudaGraphNode_t>& before);

  int rank_ = 0;
  int device_ = 0;  // of what follows
  cudaEvent_t forked_ = nullptr;
  std::array<Lane, 2> lanes_;
};

}  // namespace tutti::cuda
