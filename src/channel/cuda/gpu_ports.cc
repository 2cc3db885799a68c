#include "channel/cuda/gpu_ports.h"

#include <cuda_runtime_api.h>

#include <new>

#include "channel/cuda/stream_engine.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/own_memory.h"

namespace tutti::cuda {

GpuPorts::GpuPorts(const device::Control& control, int device, cudaStream_t stream)
    : control_(control),
      pinned_memory_(make_own_pinned(sizeof(Pinned))),
      counters_memory_(make_own_memory(device, sizeof(Counters))),
      pinned_(new (pinned_memory_.get()) Pinned),
      counters_(reinterpret_cast<Counters*>(counters_memory_.get())) {
  void* memory = nullptr;
  check_cuda(cudaHostGetDevicePointer(&memory, pinned_, 0), "cudaHostGetDevicePointer");
  pinned_on_device_ = static_cast<Pinned*>(memory);
  check_cuda(cudaMemsetAsync(counters_, 0, sizeof(Counters), stream), "cudaMemsetAsync");
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const PortProxy::Shared shared{pinned_->slots, &pinned_->tail, pinned_->flushed, kRequests, control.host};
  proxy_ = std::make_unique<PortProxy>(std::make_unique<StreamEngine>(device, control.size), shared, control.rank,
                                       control.size);
}

device::PortChannel GpuPorts::channel(int peer) const noexcept {
  device::PortChannel channel;
  channel.control = control_;
  channel.peer = peer;
  channel.fifo = {pinned_on_device_->slots, &pinned_on_device_->tail, &counters_->head, &counters_->known_tail,
                  kRequests};
  channel.flushed = &pinned_on_device_->flushed[peer];
  return channel;
}

}  // namespace tutti::cuda
