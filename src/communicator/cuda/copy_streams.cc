#include "communicator/cuda/copy_streams.h"

#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"
#include "device/cuda/stream_capture.h"

namespace tutti::cuda {

CopyStreams::~CopyStreams() {
  if (lanes_.front().stream == nullptr) return;  // nothing was made
  give_back_on(device_, [this] {
    for (const Lane& lane : lanes_) {
      if (lane.done != nullptr) static_cast<void>(cudaEventDestroy(lane.done));
      if (lane.stream != nullptr) static_cast<void>(cudaStreamDestroy(lane.stream));
    }
    if (forked_ != nullptr) static_cast<void>(cudaEventDestroy(forked_));
  });
}

void CopyStreams::prepare(int rank) {
  if (forked_ != nullptr) return;
  rank_ = rank;
  const RelaxedCapture relaxed;
  check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
  for (Lane& lane : lanes_) {
    // Where ranks share a GPU, a kernel that waits must not lie before a copy in one hardware queue: streams of another
    // priority have queues of their own.
    if (lane.stream == nullptr) lane.stream = make_urgent_stream();
    if (lane.done == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
  }
  check_cuda(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

void CopyStreams::issue(const std::vector<PeerCopy>& copies, cudaStream_t stream) {
  if (copies.empty()) return;
  const StreamCapture capture = capture_of(stream);
  if (capture.id == 0) return fork(copies, stream);
  add_nodes(copies, stream, capture.graph, capture.last);
}

void CopyStreams::add_nodes(const std::vector<PeerCopy>& copies, cudaStream_t stream, cudaGraph_t graph,
                            const std::vector<cudaGraphNode_t>& before) {
  std::array<std::vector<cudaGraphNode_t>, 2> ends{before, before};  // of each lane
  for (const PeerCopy& copy : copies) {
    std::vector<cudaGraphNode_t>& end = ends[lane_of(copy)];
    cudaGraphNode_t node = nullptr;
    check_cuda(cudaGraphAddMemcpyNode1D(&node, graph, end.data(), end.size(), copy.to, copy.from, copy.bytes,
                                        cudaMemcpyDefault),
               "cudaGraphAddMemcpyNode1D");
    end.assign(1, node);
  }
  // A lane without a copy ends where both begin: behind the other's.
  std::vector<cudaGraphNode_t> last;
  for (const std::vector<cudaGraphNode_t>& end : ends) {
    if (end != before) last.insert(last.end(), end.begin(), end.end());
  }
  check_cuda(
      cudaStreamUpdateCaptureDependencies(stream, last.data(), nullptr, last.size(), cudaStreamSetCaptureDependencies),
      "cudaStreamUpdateCaptureDependencies");
}

void CopyStreams::fork(const std::vector<PeerCopy>& copies, cudaStream_t stream) {
  check_cuda(cudaEventRecord(forked_, stream), "cudaEventRecord");
  for (const Lane& lane : lanes_) check_cuda(cudaStreamWaitEvent(lane.stream, forked_, 0), "cudaStreamWaitEvent");
  for (const PeerCopy& copy : copies) {
    check_cuda(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, lanes_[lane_of(copy)].stream),
               "cudaMemcpyAsync");
  }
  for (const Lane& lane : lanes_) {
    check_cuda(cudaEventRecord(lane.done, lane.stream), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(stream, lane.done, 0), "cudaStreamWaitEvent");
  }
}

}  // namespace tutti::cuda
