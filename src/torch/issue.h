// How a prepared call becomes a Work; included by the files that define collectives.
#pragma once

#include <ATen/record_function.h>

#include "aten/errors.h"
#include "aten/tensors.h"
#include "torch/process_group.h"

namespace tutti::face {

// That of a call's options, where unset and 0 are the group's.
inline std::chrono::milliseconds call_timeout(std::chrono::milliseconds timeout) {
  if (timeout == c10d::kUnsetTimeout) return {};
  if (timeout.count() < 0) refuse_negative("a call", timeout);
  return timeout;
}

// A profiler event around a call that this thread runs or enqueues; costs one thread-local read while no profiler is
// on. Of a queued call it does not wait for the end: the profiler may have stopped by then, and its memory be gone.
class CallEvent {
 public:
  CallEvent(const Event& event, at::ArrayRef<at::Tensor> inputs);

 private:
  std::optional<at::RecordFunction> record_;
};

// The GPU of a call's tensors; they all have one, if any of them has.
inline std::optional<c10::Device> gpu_of(at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs) {
  const at::Tensor* first = !inputs.empty() ? &inputs.front() : !outputs.empty() ? &outputs.front() : nullptr;
  if (first == nullptr || !first->is_cuda()) return std::nullopt;
  return first->device();
}

template <typename Build>
C10dWorkPtr ProcessGroupTutti::issue(const Event& event, at::ArrayRef<at::Tensor> inputs,
                                     at::ArrayRef<at::Tensor> outputs, bool async, Milliseconds timeout,
                                     Build&& build) {
  if (const auto gpu = gpu_of(inputs, outputs)) {
    return issue_on_cuda(*gpu, event, inputs, outputs, async, timeout, 1,
                         [&](std::size_t /*i*/, Prepared& prepared) { build(prepared); });
  }
  if (!async) {
    Prepared prepared(/*keep=*/false);
    build(prepared);
    run_reported(event, inputs, prepared.call, timeout);
    if (prepared.has_write_backs()) prepared.write_back();
    return c10::make_intrusive<CompletedWork>(rank_, event.op, outputs);
  }
  Batch batch;
  batch.push_back(std::make_unique<Prepared>(/*keep=*/true));
  build(*batch.back());
  return submit_batch(event, inputs, outputs, std::move(batch), timeout);
}

template <typename Build>
C10dWorkPtr ProcessGroupTutti::issue_many(const Event& event, at::ArrayRef<at::Tensor> inputs,
                                          at::ArrayRef<at::Tensor> outputs, bool async, Milliseconds timeout,
                                          std::size_t count, Build&& build) {
  if (const auto gpu = gpu_of(inputs, outputs)) {
    return issue_on_cuda(*gpu, event, inputs, outputs, async, timeout, count, build);
  }
  Batch batch;
  batch.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    batch.push_back(std::make_unique<Prepared>(async));
    build(i, *batch.back());
  }
  return async ? submit_batch(event, inputs, outputs, std::move(batch), timeout)
               : run_batch(event, inputs, outputs, std::move(batch), timeout);
}

}  // namespace tutti::face
