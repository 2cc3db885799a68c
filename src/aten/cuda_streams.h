// The streams on which calls on CUDA tensors run.
//
// A communicator's streams must outlive it (DeviceOptions::lasting_streams), and those of PyTorch do: the default one
// and its pools' are never destroyed. A stream of others' (torch.cuda.ExternalStream) may be destroyed as soon as a
// call on it returns, so a synchronous call runs aside there, too, and the caller's stream waits for it.
#pragma once

#include <ATen/core/ivalue_inl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>
#include <vector>

#include "aten/cuda_events.h"

namespace tutti::face {

inline c10::Stream current_cuda_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device);
}

// Whether PyTorch made the stream. The number of any other one is its handle, an even number; those of pools are odd.
inline bool lasts(const c10::Stream& stream) { return stream.id() == 0 || stream.id() % 2 != 0; }

// Of what has been enqueued on `stream`. It is complete at once: a future of CUDA tensors records the streams that are
// current here, and makes those wait that use its value.
inline c10::intrusive_ptr<c10::ivalue::Future> enqueued_future(const c10::Stream& stream,
                                                               std::vector<at::Tensor> outputs) {
  const c10::StreamGuard on_stream(stream);
  auto future =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors(), std::vector<c10::Device>{stream.device()});
  future->markCompleted(c10::IValue(std::move(outputs)));
  return future;
}

// Makes a lane's stream the current one, after everything that the current one holds. With `join`, what follows on that
// one comes after everything that the lane has got meanwhile.
class OnSideStream {
 public:
  OnSideStream(CudaEventsPtr events, const c10::Stream& side, bool join = false)
      : events_(std::move(events)), guard_(side), join_(join) {
    CudaEvent(events_, guard_.original_stream()).block(side);
  }
  ~OnSideStream() {
    if (!join_) return;
    try {
      CudaEvent(events_, guard_.current_stream()).block(guard_.original_stream());
    } catch (const std::exception&) {
      // CUDA has failed, as whoever uses the stream next will hear.
    }
  }
  OnSideStream(const OnSideStream&) = delete;
  OnSideStream& operator=(const OnSideStream&) = delete;

 private:
  const CudaEventsPtr events_;
  c10::StreamGuard guard_;
  const bool join_;
};

}  // namespace tutti::face
