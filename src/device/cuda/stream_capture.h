// Whether a stream is being captured, and into what: asked of CUDA here alone.
//
// Thread rule: any thread, of streams of its current device. Throws Error.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

namespace tutti::cuda {

// What is enqueued becomes a part of a graph; so also where a capture has failed and has not been ended yet.
bool is_capturing(cudaStream_t stream);

struct StreamCapture {
  unsigned long long id = 0;  // 0: none, or one that has failed
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> last;  // nodes of the graph behind which the stream's next one comes
};
StreamCapture capture_of(cudaStream_t stream);

}  // namespace tutti::cuda
