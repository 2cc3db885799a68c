// Calls on CUDA tensors: the same descriptions as on the CPU, enqueued on a stream instead of run.
//
// Synchronous calls run on the current stream, so that nothing has to be awaited or kept (cuda_streams.h says where
// not). Asynchronous ones run on a stream of the group, which waits for the current one first. Whatever a call needs
// around it (gathering a layout, writing it back) is enqueued on the same stream.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aten/cuda_batch.h"
#include "aten/cuda_side.h"
#include "aten/cuda_streams.h"
#include "aten/signals.h"
#include "base/registry.h"
#include "communicator/call_parts.h"
#include "torch/cuda_work.h"
#include "torch/deferred_cuda_work.h"
#include "torch/issue.h"
#include "tutti/cuda/capture.h"

namespace tutti::face {
namespace {

// Of calls that are under way on a stream though an exception leaves no work for them: the allocator must not give the
// tensors' memory to others before the stream has passed.
void leave_on(const c10::Stream& stream, at::ArrayRef<at::Tensor> tensors) noexcept {
  if (forked_child()) return;  // where nothing is under way, and the allocator asks CUDA of what it was told
  try {
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    for (const at::Tensor& tensor : tensors) cuda.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
  } catch (const std::exception&) {
    // CUDA has failed, or there is no memory for it: the caller hears of the first reason.
  }
}

// The lane's stream is the current one.
C10dWorkPtr exchange(int rank, c10d::OpType op, const std::weak_ptr<Communicator>& group, const CudaLane& lane,
                     CudaBatch& batch) try {
  translated([&] { lane.communicator->exchange(batch.messages, lane.stream.native_handle()); });
  std::vector<at::Tensor> kept;
  for (const auto& prepared : batch.prepared) {
    prepared->write_back();
    prepared->append_kept(kept);
  }
  return c10::make_intrusive<CudaWork>(rank, op, group, lane, lane.stream, /*side=*/true, kept, batch.tensors);
} catch (...) {
  leave_on(lane.stream, batch.tensors);
  throw;
}

struct CudaTransfer {
  int peer;  // a rank of the communicator that it goes to
  std::uint32_t tag;
  bool receive;
};

// Adds the message of `tensor`, whose memory is `view`'s. What has to be gathered is, on the current stream. So is what
// will be written back: PyTorch's kernel for that is then loaded. CUDA loads a kernel at its first launch, waits
// meanwhile for the kernels under way, and lets no other thread launch. Behind a receive that would be for good if the
// peer does the same before it sends.
void describe(CudaBatch& batch, const CudaTransfer& transfer, const at::Tensor& tensor, const at::Tensor& view) {
  batch.prepared.push_back(std::make_unique<Prepared>(/*keep=*/true));
  Prepared& prepared = *batch.prepared.back();
  void* memory = transfer.receive ? prepared.output(view, /*read=*/true) : prepared.input(view);
  batch.messages.push_back({!transfer.receive, memory, Prepared::bytes_of(view), transfer.peer, transfer.tag});
  batch.tensors.push_back(tensor);
}

// A message between two ranks whose communicator is being made: all of it happens on the maker's thread, when the turn
// comes. The side stream must not wait earlier for what the caller's held: that may itself depend on a message that is
// queued before this one.
class QueuedMessage final : public DeferredMessage {
 public:
  // The lane has no communicator yet.
  QueuedMessage(const std::weak_ptr<Communicator>& group, const CudaLane& lane, int rank, c10d::OpType op,
                const CudaTransfer& transfer, int peer, const at::Tensor& tensor)
      : work_(c10::make_intrusive<DeferredCudaWork>(rank, peer, op, lane.stream, tensor)),
        group_(group),
        lane_(lane),
        transfer_(transfer),
        rank_(rank),
        op_(op),
        tensor_(tensor),
        before_(lane.events, current_cuda_stream(tensor.device())) {
    // A shape of its own: what the caller does to that of its tensor meanwhile is nothing to the message.
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    view_ = at::alias(tensor);
  }

  const c10::intrusive_ptr<DeferredCudaWork>& work() const noexcept { return work_; }

  void run(const StreamCommunicatorPtr& pair) noexcept override {
    try {
      settle_on_device();
      CudaLane lane = lane_;
      lane.communicator = pair;
      const c10::StreamGuard on_stream(lane.stream);
      before_.block(lane.stream);
      CudaBatch batch(tensor_.device());
      describe(batch, transfer_, tensor_, view_);
      enqueued_ = exchange(rank_, op_, group_, lane, batch);
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  void fail(const std::exception_ptr& error) noexcept override {
    try {
      settle_on_device();
    } catch (const std::exception&) {
      // Then its end does more than it need.
    }
    error_ = as_torch(error);
  }
  void wake() noexcept override { work_->settle(std::move(enqueued_), error_); }
  void announce() noexcept override {
    try {
      work_->announce();
    } catch (const std::exception& error) {
      // A future has no other place to put it; the work itself has its outcome.
      TORCH_WARN("tutti: a future of a message between two ranks cannot complete: ", error.what());
    }
  }

 private:
  // For as long as the maker's thread lives. PyTorch returns to a thread's own device once it has destroyed an event;
  // on the first GPU, a new thread's own, that would make a context, which takes half a gigabyte.
  void settle_on_device() const { c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(lane_.stream.device()); }

  const c10::intrusive_ptr<DeferredCudaWork> work_;
  const std::weak_ptr<Communicator> group_;
  const CudaLane lane_;
  const CudaTransfer transfer_;
  const int rank_;
  const c10d::OpType op_;
  const at::Tensor tensor_;
  at::Tensor view_;
  const CudaEvent before_;
  C10dWorkPtr enqueued_;      // once it has run,
  std::exception_ptr error_;  // or this
};

}  // namespace

C10dWorkPtr ProcessGroupTutti::issue_on_cuda(c10::Device device, const Event& event, at::ArrayRef<at::Tensor> inputs,
                                             at::ArrayRef<at::Tensor> outputs, bool async, Milliseconds timeout,
                                             std::size_t count, c10::function_ref<void(std::size_t, Prepared&)> build) {
  const c10::DeviceGuard on_device(device);
  const CudaLane& lane = translated([&]() -> const CudaLane& { return cuda_.group(device); });
  const CallEvent reported(event, inputs);
  std::optional<OnSideStream> side;
  if (async || !lasts(current_cuda_stream(device))) side.emplace(lane.events, lane.stream, /*join=*/!async);
  const c10::Stream stream = current_cuda_stream(device);

  std::optional<Prepared> single;  // the common case allocates nothing
  Batch batch;
  const auto part = [&](std::size_t i) -> Prepared& { return count == 1 ? *single : *batch[i]; };
  for (std::size_t i = 0; i < count; ++i) {
    if (count == 1) {
      single.emplace(/*keep=*/false);
    } else {
      batch.push_back(std::make_unique<Prepared>(/*keep=*/false));
    }
    build(i, part(i));
  }
  try {
    translated([&] {
      // All of them before the first is enqueued; run() itself checks a single one.
      for (std::size_t i = 0; count > 1 && i < count; ++i) lane.communicator->check(part(i).call);
      std::size_t i = 0;
      const auto run = [&] {
        for (; i < count; ++i) lane.communicator->run(part(i).call, stream.native_handle(), call_timeout(timeout));
      };
      const bool captures = lane.communicator->is_capturing(stream.native_handle());
      issue_as_a_whole([&] { return i; }, run,
                       [&](const std::string& why) {
                         // The graph of a capture that has failed never runs: nobody has come to a part of the call.
                         if (captures && cuda_capture_of(device.index(), stream.native_handle()) == 0) return;
                         lane.communicator->abort(why);
                       });
    });
    for (std::size_t i = 0; i < count; ++i) part(i).write_back();
    auto work = c10::make_intrusive<CudaWork>(rank_, event.op, communicator_, lane, stream, async, inputs, outputs);
    if (async) {
      for (std::size_t i = 0; i < count; ++i) {
        if (part(i).device_factor().defined()) work->keep(part(i).device_factor());
      }
      captured(work);
    }
    return work;
  } catch (...) {
    if (async) {
      leave_on(stream, inputs);
      leave_on(stream, outputs);
      for (std::size_t i = 0; i < count; ++i) {
        if (part(i).device_factor().defined()) leave_on(stream, part(i).device_factor());
      }
    }
    throw;
  }
}

C10dWorkPtr ProcessGroupTutti::transfer_on_cuda(const Event& event, const at::Tensor& tensor, int peer, int tag,
                                                bool receive) {
  if (peer == kAnySource) refuse("recv of a CUDA tensor needs a source rank");
  if (peer == rank_) refuse("send and recv of CUDA tensors go to other ranks");
  const c10::DeviceGuard on_device(tensor.device());
  CudaTransfer transfer{peer, static_cast<std::uint32_t>(tag), receive};
  if (CudaBatch* open = open_cuda_batch(tensor.device())) {
    // What is gathered is so on the stream that will send it. Its memory would else be the caller's stream's, which may
    // have it again as soon as any other stream waits for the work.
    std::optional<OnSideStream> side;
    if (!usable_in_place(tensor)) {
      side.emplace(cuda_.events(), translated([&] { return cuda_.group(tensor.device()).stream; }));
    }
    describe(*open, transfer, tensor, tensor);  // endCoalescing sends it
    return c10::make_intrusive<CompletedWork>(rank_, event.op, tensor);
  }
  transfer.peer = receive ? 0 : 1;  // ranks of the pair's communicator
  const auto made_pair = [&] {
    const auto current = current_cuda_stream(tensor.device()).native_handle();
    return translated([&] {
      return interruptible([&] { return devices().pair(tensor.device().index(), peer, /*send=*/!receive, current); });
    });
  };
  CudaLane lane{made_pair(), cuda_.message_stream(tensor.device(), peer, /*send=*/!receive), cuda_.events()};
  const CallEvent reported(event, tensor);
  if (lane.communicator == nullptr) {
    auto queued = std::make_unique<QueuedMessage>(communicator_, lane, rank_, event.op, transfer, peer, tensor);
    C10dWorkPtr work = queued->work();
    std::unique_ptr<DeferredMessage> message = std::move(queued);
    if (translated([&] { return devices().defer(peer, /*send=*/!receive, message); })) return work;
    lane.communicator = made_pair();  // made meanwhile
  }
  const OnSideStream side(lane.events, lane.stream);
  CudaBatch batch(tensor.device());
  describe(batch, transfer, tensor, tensor);
  return exchange(rank_, event.op, communicator_, lane, batch);
}

C10dWorkPtr ProcessGroupTutti::end_cuda_batch(CudaBatch& batch) {
  const c10::DeviceGuard on_device(batch.device);
  const CudaLane& lane = translated([&]() -> const CudaLane& { return cuda_.group(batch.device); });
  const OnSideStream side(lane.events, lane.stream);
  const CallEvent reported({"tutti:coalesced", c10d::OpType::COALESCED}, batch.tensors);
  return exchange(rank_, c10d::OpType::COALESCED, communicator_, lane, batch);
}

void ProcessGroupTutti::drain_cuda() {
  const StreamCommunicatorPtr made = devices().made_group();
  if (made == nullptr) return;
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Stream current = cuda.getStream({c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(made->device())});
  const auto abort = [this](const std::string& reason) { abort_because(reason); };
  translated([&] {
    if (made->is_capturing(current.native_handle())) return;  // it runs at no time that could be awaited
    interruptible_by(abort, [&] { devices().synchronize(made->device(), current.native_handle()); });
  });
  if (const auto failure = devices().failure()) throw_as_torch(*failure);
}

void ProcessGroupTutti::eagerConnectSingleDevice(at::Device device) {
  if (!device.is_cuda()) return;
  const c10::DeviceGuard on_device(device);
  translated([&] { cuda_.group(device); });
}

}  // namespace tutti::face
