// Calls on CUDA tensors: the same descriptions as on the CPU, enqueued on a stream instead of run.
//
// Synchronous calls run on the current stream, so that nothing has to be awaited or kept. Asynchronous ones run on a
// stream of the group, which waits for the current one first. Whatever a call needs around it (gathering a layout,
// writing it back) is enqueued on the same stream.
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "torch/cuda_batch.h"
#include "torch/cuda_side.h"
#include "torch/cuda_work.h"
#include "torch/issue.h"

namespace tutti::face {
namespace {

// Makes a lane's stream the current one, after everything that the current one holds.
class OnSideStream {
 public:
  explicit OnSideStream(const c10::Stream& side) : guard_(side) {
    c10::Event before(c10::DeviceType::CUDA);
    before.record(guard_.original_stream());
    before.block(side);
  }

 private:
  c10::StreamGuard guard_;
};

}  // namespace

C10dWorkPtr ProcessGroupTutti::issue_on_cuda(c10::Device device, const Event& event, at::ArrayRef<at::Tensor> inputs,
                                             at::ArrayRef<at::Tensor> outputs, bool async, Milliseconds timeout,
                                             std::size_t count, c10::function_ref<void(std::size_t, Prepared&)> build) {
  const c10::DeviceGuard on_device(device);
  const CudaLane& lane = translated([&]() -> const CudaLane& { return cuda_.group(device); });
  const SyncEvent reported(event, inputs);
  std::optional<OnSideStream> side;
  if (async) side.emplace(lane.stream);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device);

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
  translated([&] {
    // All of them before the first is enqueued; run() itself checks a single one.
    for (std::size_t i = 0; count > 1 && i < count; ++i) lane.communicator->check(part(i).call);
    for (std::size_t i = 0; i < count; ++i) {
      lane.communicator->run(part(i).call, stream.native_handle(), call_timeout(timeout));
    }
  });
  for (std::size_t i = 0; i < count; ++i) part(i).write_back();
  auto work = c10::make_intrusive<CudaWork>(rank_, event.op, lane.communicator, stream, async, inputs, outputs);
  if (async) {
    for (std::size_t i = 0; i < count; ++i) {
      if (part(i).device_factor().defined()) work->keep(part(i).device_factor());
    }
    captured(work);
  }
  return work;
}

C10dWorkPtr ProcessGroupTutti::transfer_on_cuda(const Event& event, at::Tensor& tensor, int peer, int tag,
                                                bool receive) {
  if (peer == kAnySource) refuse("recv of a CUDA tensor needs a source rank");
  if (peer == rank_) refuse("send and recv of CUDA tensors go to other ranks");
  const c10::DeviceGuard on_device(tensor.device());
  CudaBatch batch(tensor.device());
  const auto describe = [&](CudaBatch& into) {
    into.prepared.push_back(std::make_unique<Prepared>(/*keep=*/true));
    Prepared& prepared = *into.prepared.back();
    void* memory = receive ? prepared.output(tensor) : prepared.input(tensor);
    into.messages.push_back({!receive, memory, Prepared::bytes_of(tensor), peer, static_cast<std::uint32_t>(tag)});
    into.tensors.push_back(tensor);
  };
  if (CudaBatch* open = open_cuda_batch(tensor.device())) {
    describe(*open);  // endCoalescing sends it
    return c10::make_intrusive<CompletedWork>(rank_, event.op, tensor);
  }
  const CudaLane& lane =
      translated([&]() -> const CudaLane& { return cuda_.pair(tensor.device(), peer, /*send=*/!receive); });
  const OnSideStream side(lane.stream);
  describe(batch);
  batch.messages.front().peer = receive ? 0 : 1;  // ranks of the pair's communicator
  return exchange_on_cuda(event, lane, batch);
}

// The lane's stream is the current one.
C10dWorkPtr ProcessGroupTutti::exchange_on_cuda(const Event& event, const CudaLane& lane, CudaBatch& batch) {
  const SyncEvent reported(event, batch.tensors);
  translated([&] { lane.communicator->exchange(batch.messages, lane.stream.native_handle()); });
  std::vector<at::Tensor> kept;
  for (const auto& prepared : batch.prepared) {
    prepared->write_back();
    prepared->append_kept(kept);
  }
  return c10::make_intrusive<CudaWork>(rank_, event.op, lane.communicator, lane.stream, /*side=*/true, kept,
                                       batch.tensors);
}

C10dWorkPtr ProcessGroupTutti::end_cuda_batch(CudaBatch& batch) {
  const c10::DeviceGuard on_device(batch.device);
  const CudaLane& lane = translated([&]() -> const CudaLane& { return cuda_.group(batch.device); });
  const OnSideStream side(lane.stream);
  return exchange_on_cuda({"tutti:coalesced", c10d::OpType::COALESCED}, lane, batch);
}

void ProcessGroupTutti::drain_cuda(c10::Device device) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  cuda.synchronizeStream(cuda.getStream(device));
  if (const auto failure = cuda_.failure()) throw_as_torch(*failure);
}

void ProcessGroupTutti::eagerConnectSingleDevice(at::Device device) {
  if (!device.is_cuda()) return;
  const c10::DeviceGuard on_device(device);
  translated([&] { cuda_.group(device); });
}

}  // namespace tutti::face
