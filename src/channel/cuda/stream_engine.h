// Copy engines by streams of CUDA: one a peer, of this rank's device.
//
// Order. On one stream a copy starts when the one before is complete, and cuStreamWriteValue64, without the flag that
// gives it up, puts a fence of system scope before its store: who acquires the word sees the copies. That is why there
// is no way without it: a small copy in its place would come after the others too, but nothing says that it is a
// release. Devices of sm_80 and later have it with every driver for CUDA 12; where it is forbidden, ports are refused.
//
// The streams have the highest priority. Streams of one priority share hardware queues when there are many, and behind
// a kernel that waits for a copy the copy would wait for ever.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "channel/cuda/copy_engine.h"

namespace tutti::cuda {

class StreamEngine final : public CopyEngine {
 public:
  // Of the current device, for ranks 0 ... `ranks` - 1. Throws Error(kUnsupported) if the device cannot write values
  // in stream order.
  StreamEngine(int device, int ranks);
  ~StreamEngine() override;

  void begin_thread() override;
  void copy(int peer, std::byte* to, const std::byte* from, std::size_t bytes) override;
  void store(int peer, std::uint64_t* word, std::uint64_t value) override;
  bool mark(int peer) override;
  int take_reached(int peer) override;
  void finish() override;

 private:
  static constexpr std::size_t kMarks = 16;
  // Events are used in turn; all are made beforehand.
  struct Lane {
    cudaStream_t stream = nullptr;
    cudaEvent_t events[kMarks] = {};
    std::size_t marked = 0, reached = 0;
  };
  void release() noexcept;

  const int device_;
  std::vector<Lane> lanes_;  // by peer
};

}  // namespace tutti::cuda
