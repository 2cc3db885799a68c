// A c10d::Work of what a CUDA stream held when it was made: copies that a window has enqueued there.
//
// wait() makes the caller's current stream wait, not the host, unless it is given a time limit.
//
// Ownership: shared by who waits; holds the copies' tensor. Thread rule: any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "aten/cuda_events.h"
#include "base/release.h"

namespace tutti::torchcomms {

class StreamEvent final : public c10d::Work {
 public:
  // `kept` lives as long as this does.
  StreamEvent(face::CudaEventsPtr events, c10::Stream stream, at::Tensor kept);
  ~StreamEvent() override { left_by_child(kept_, future_); }  // the allocator, and a future's events, may touch CUDA

  bool isCompleted() override;
  bool isSuccess() const override { return true; }
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return {kept_}; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const c10::Stream stream_;
  const at::Tensor kept_;
  std::mutex mutex_;  // guards the members below; a leaf
  const face::CudaEvent event_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace tutti::torchcomms
