// Keeps the kernels of one communicator in their order of issue, across streams and graphs.
//
// On one stream there is nothing to do. A changed stream waits for an event on the one before; both captured into one
// graph, that becomes an edge of the graph.
//
// Replays are launched by others. So the first capture makes an event that outlives captures: each graph waits for it
// before its first kernel and records it behind its last, and from then on so does each eager call. Whatever is
// launched later on the host, replay or call, runs later. The graph's one node that records is moved behind each kernel
// that comes, since nobody tells which is the last (an event for this is what NCCL's strong streams have, too). An
// eager call issued before the first capture is not behind the event: the kernels find it if a replay overlaps it.
//
// A stream may be destroyed behind a call, and its handle may come back as that of another one. So streams are told
// apart by their numbers, which never come back, and each eager call records the event behind itself: nothing is asked
// of a stream that is not the caller's present one. Only where all streams last is the event recorded when the stream
// changes, which costs one call less and covers what else lies on the stream before.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "device/cuda/stream_capture.h"

namespace tutti::cuda {

class StreamOrder {
 public:
  // `lasting`: all streams that come outlive this object.
  explicit StreamOrder(bool lasting) : lasting_(lasting) {}
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Before a launch on `stream`. `resource` is kept alive by the graph if the stream is being captured: then
  // true.
  bool before(cudaStream_t stream, const std::shared_ptr<const void>& resource);
  // Behind a launch, `captured` as before() said: what comes later, in whatever way, waits for this point.
  void after(cudaStream_t stream, bool captured);
  // Keeps `resource` alive with the graph if the stream is being captured.
  void retain(cudaStream_t stream, const std::shared_ptr<const void>& resource);
  // Nothing is under way: the last eager launch has ended. False once any was captured, since nothing tells of replays.
  bool idle() const noexcept;
  // A launch was captured: a replay may be under way at any time.
  bool has_captured() const noexcept { return captured_.made; }
  // Waits on the host for the last eager launch: of streams that last, where its stream is being captured by now, for
  // all that runs on the device, which is the current one.
  void wait() noexcept;

 private:
  struct Launch {
    bool made = false;
    cudaStream_t stream = nullptr;   // may be gone unless `lasting`, or of a capture
    unsigned long long number = 0;   // of the stream, eager
    unsigned long long capture = 0;  // 0: eager
  };
  struct SharedEvent {
    SharedEvent();
    ~SharedEvent();
    int device = 0;
    cudaEvent_t event = nullptr;
  };
  void retain_in(const StreamCapture& capture, const std::shared_ptr<const void>& resource);
  // Has the graph wait for the event of replays and eager calls, made here at the first capture, if it does not yet.
  void bind(const StreamCapture& capture, cudaStream_t stream);

  void record(cudaEvent_t& event, cudaStream_t stream);
  static void refuse_captured(cudaStream_t last);

  const bool lasting_;
  int device_ = 0;  // of the events
  // Behind the last eager launch, and behind the last captured one when its stream changes: a captured event is a part
  // of its graph, of no use outside.
  cudaEvent_t eager_event_ = nullptr, captured_event_ = nullptr;
  Launch eager_, captured_;  // the last ones
  // Of replays and eager calls; null before the first capture. The graphs keep it.
  std::shared_ptr<const SharedEvent> replays_;
  unsigned long long bound_ = 0;           // the capture whose graph has the nodes that follow
  cudaGraphNode_t recording_ = nullptr;    // records the event; null before its first kernel
  std::vector<cudaGraphNode_t> recorded_;  // behind these
  unsigned long long retained_by_ = 0;     // the capture that holds what follows
  std::vector<const void*> retained_;
};

// Resources whose graphs are gone: destroyed at the next call of this function, because a graph's destructor may not
// call CUDA.
void release_retired();

}  // namespace tutti::cuda
