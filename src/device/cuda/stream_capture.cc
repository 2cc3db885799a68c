#include "device/cuda/stream_capture.h"

#include <cstddef>

#include "device/cuda/cuda_check.h"

namespace tutti::cuda {

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

StreamCapture capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  StreamCapture capture;
  const cudaGraphNode_t* last = nullptr;
  const cudaGraphEdgeData* edges = nullptr;  // of no use here; CUDA fails where it may not tell of uncommon ones
  std::size_t count = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &capture.id, &capture.graph, &last, &edges, &count),
             "cudaStreamGetCaptureInfo");
  if (status != cudaStreamCaptureStatusActive) return {};
  if (count > 0) capture.last.assign(last, last + count);
  return capture;
}

}  // namespace tutti::cuda
