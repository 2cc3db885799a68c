// Keeps the kernels of one communicator in their order of issue, across streams and graphs.
//
// On one stream there is nothing to do. A changed stream waits for an event on the one before; both captured into one
// graph, that becomes an edge of the graph. Between a captured and an eager call nothing can be said here: the caller
// orders replays, and the kernels find overlap.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace tutti::cuda {

class StreamOrder {
 public:
  StreamOrder() = default;
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Before a launch on `stream`. `resource` is kept alive by the graph if the stream is being captured.
  void before(cudaStream_t stream, const std::shared_ptr<void>& resource);
  // Waits on the host for the last eager launch.
  void wait() noexcept;

 private:
  cudaEvent_t event_ = nullptr;
  cudaStream_t last_ = nullptr;
  bool used_ = false;
  unsigned long long last_capture_ = 0;  // of the last launch; 0: eager
  unsigned long long retained_by_ = 0;   // the capture that holds `resource` already
};

// Resources whose graphs are gone: destroyed at the next call of this function, because a graph's destructor may not
// call CUDA.
void release_retired();

}  // namespace tutti::cuda
