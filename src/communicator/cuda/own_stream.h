// A stream of a communicator's own, for callers that have none: made when it is first asked for.
//
// Thread rule: any thread. Lock: mutex_, held while it is made; a leaf. A forked child leaves it.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>

#include "base/registry.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"

namespace tutti::cuda {

class OwnStream {
 public:
  explicit OwnStream(int device) : device_(device) {}
  // What it holds goes on.
  ~OwnStream() {
    if (stream_ == nullptr || forked_child()) return;
    give_back_on(device_, [this] { static_cast<void>(cudaStreamDestroy(stream_)); });
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  // Throws Error.
  cudaStream_t get() {
    const std::lock_guard lock(mutex_);
    if (stream_ == nullptr) {
      const DeviceGuard guard(device_);
      const RelaxedCapture relaxed;
      check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    return stream_;
  }

 private:
  const int device_;
  std::mutex mutex_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace tutti::cuda
