#include "communicator/cuda/copy_streams.h"

#include "device/cuda/cuda_check.h"

namespace tutti::cuda {
namespace {

// Lets this thread make streams and events while it, or another one, captures.
class RelaxedCapture {
 public:
  RelaxedCapture() { check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  ~RelaxedCapture() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then what it was before
};

// Side by side behind what was captured last.
void add_nodes(const std::vector<PlannedCopy>& copies, cudaStream_t stream, cudaGraph_t graph,
               const std::vector<cudaGraphNode_t>& before) {
  std::vector<cudaGraphNode_t> nodes(copies.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    check_cuda(cudaGraphAddMemcpyNode1D(&nodes[i], graph, before.data(), before.size(), copies[i].to, copies[i].from,
                                        copies[i].bytes, cudaMemcpyDefault),
               "cudaGraphAddMemcpyNode1D");
  }
  check_cuda(cudaStreamUpdateCaptureDependencies(stream, nodes.data(), nullptr, nodes.size(),
                                                 cudaStreamSetCaptureDependencies),
             "cudaStreamUpdateCaptureDependencies");
}

}  // namespace

CopyStreams::~CopyStreams() {
  for (const Lane& lane : lanes_) {
    if (lane.done != nullptr) static_cast<void>(cudaEventDestroy(lane.done));
    if (lane.stream != nullptr) static_cast<void>(cudaStreamDestroy(lane.stream));
  }
  if (forked_ != nullptr) static_cast<void>(cudaEventDestroy(forked_));
}

void CopyStreams::prepare(int ranks) {
  if (forked_ != nullptr) return;
  const RelaxedCapture relaxed;
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  lanes_.resize(static_cast<std::size_t>(ranks));
  for (Lane& lane : lanes_) {
    // Where ranks share a GPU, a kernel that waits must not lie before a copy in one hardware queue: streams of another
    // priority have queues of their own.
    if (lane.stream == nullptr) {
      check_cuda(cudaStreamCreateWithPriority(&lane.stream, cudaStreamNonBlocking, greatest),
                 "cudaStreamCreateWithPriority");
    }
    if (lane.done == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&lane.done, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
  }
  check_cuda(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

void CopyStreams::issue(const std::vector<PlannedCopy>& copies, cudaStream_t stream) {
  if (copies.empty()) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* before = nullptr;
  std::size_t count = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &before, nullptr, &count),
             "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive) return fork(copies, stream);
  add_nodes(copies, stream, graph, std::vector<cudaGraphNode_t>(before, before + count));
}

void CopyStreams::fork(const std::vector<PlannedCopy>& copies, cudaStream_t stream) {
  check_cuda(cudaEventRecord(forked_, stream), "cudaEventRecord");
  for (const PlannedCopy& copy : copies) {
    const Lane& lane = lanes_[static_cast<std::size_t>(copy.peer)];
    check_cuda(cudaStreamWaitEvent(lane.stream, forked_, 0), "cudaStreamWaitEvent");
    check_cuda(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, lane.stream), "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(lane.done, lane.stream), "cudaEventRecord");
  }
  for (const PlannedCopy& copy : copies) {
    check_cuda(cudaStreamWaitEvent(stream, lanes_[static_cast<std::size_t>(copy.peer)].done, 0), "cudaStreamWaitEvent");
  }
}

}  // namespace tutti::cuda
