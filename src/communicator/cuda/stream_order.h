// Keeps the kernels of one communicator in their order of issue, across streams and graphs.
//
// On one stream there is nothing to do. A changed stream waits for an event on the one before; both captured into one
// graph, that becomes an edge of the graph. Between a captured and an eager call nothing can be said here: the caller
// orders replays, and the kernels find overlap.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

namespace tutti::cuda {

class StreamOrder {
 public:
  StreamOrder() = default;
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Before a launch on `stream`. `resource` is kept alive by the graph if the stream is being captured: then
  // true.
  bool before(cudaStream_t stream, const std::shared_ptr<const void>& resource);
  // Nothing but the latter.
  void retain(cudaStream_t stream, const std::shared_ptr<const void>& resource);
  // Waits on the host for the last eager launch.
  void wait() noexcept;

 private:
  struct Launch {
    bool made = false;
    cudaStream_t stream = nullptr;
    unsigned long long capture = 0;  // 0: eager
  };
  struct Capture {
    unsigned long long id = 0;  // 0: none
    cudaGraph_t graph = nullptr;
  };
  static Capture capture_of(cudaStream_t stream);
  void retain_in(const Capture& capture, const std::shared_ptr<const void>& resource);

  cudaEvent_t event_ = nullptr;
  Launch eager_, captured_;             // the last ones
  unsigned long long retained_by_ = 0;  // the capture that holds what follows
  std::vector<const void*> retained_;
};

// Resources whose graphs are gone: destroyed at the next call of this function, because a graph's destructor may not
// call CUDA.
void release_retired();

}  // namespace tutti::cuda
