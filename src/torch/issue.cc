#include "torch/issue.h"

#include "aten/signals.h"

namespace tutti::face {

CallEvent::CallEvent(const Event& event, at::ArrayRef<at::Tensor> inputs) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) return;
  record_.emplace(std::move(*callbacks));
  record_->_setAsync();  // all of a backend's events are, whichever way a call was run
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  record_->before(event.title, c10::ArrayRef<const c10::IValue>(values.data(), values.size()));
}

void ProcessGroupTutti::run_reported(const Event& event, at::ArrayRef<at::Tensor> inputs, const Call& call,
                                     Milliseconds timeout) {
  const CallEvent reported(event, inputs);
  run_here(call, timeout);
}

void ProcessGroupTutti::run_here(const Call& call, Milliseconds timeout) {
  translated([&] { interruptible(*communicator_, [&] { communicator_->run(call, call_timeout(timeout)); }); });
}

C10dWorkPtr ProcessGroupTutti::run_batch(const Event& event, at::ArrayRef<at::Tensor> inputs,
                                         at::ArrayRef<at::Tensor> outputs, Batch batch, Milliseconds timeout) {
  const CallEvent reported(event, inputs);
  translated([&] {
    for (const auto& prepared : batch) communicator_->check(prepared->call);
  });
  for (const auto& prepared : batch) run_here(prepared->call, timeout);
  for (const auto& prepared : batch) prepared->write_back();
  return c10::make_intrusive<CompletedWork>(rank_, event.op, outputs);
}

C10dWorkPtr ProcessGroupTutti::submit_batch(const Event& event, at::ArrayRef<at::Tensor> inputs,
                                            at::ArrayRef<at::Tensor> outputs, Batch batch, Milliseconds timeout) {
  if (batch.empty()) return c10::make_intrusive<CompletedWork>(rank_, event.op, outputs);
  auto work = c10::make_intrusive<AsyncWork>(rank_, event.op, outputs, communicator_, options_->overlap_futures);
  const CallEvent reported(event, inputs);
  bool staged = false;
  for (const auto& prepared : batch) staged = staged || prepared->has_write_backs();

  // Completion is in order: the last call's is the batch's, and a failure poisons what follows.
  const auto shared = std::make_shared<Batch>(std::move(batch));
  WorkPtr last;
  translated([&] {
    if (shared->size() > 1) {
      for (const auto& prepared : *shared) communicator_->check(prepared->call);
    }
    for (const auto& prepared : *shared) last = communicator_->submit(prepared->call, call_timeout(timeout), shared);
  });
  work->number(communicator_->sequence());
  if (staged) {
    AsyncWork::attach_staged(work, last, [shared] {
      for (const auto& prepared : *shared) prepared->write_back();
    });
  } else {
    work->attach(std::move(last));
  }
  captured(work);
  return work;
}

}  // namespace tutti::face
