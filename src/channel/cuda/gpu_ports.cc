#include "channel/cuda/gpu_ports.h"

#include <cuda_runtime_api.h>

#include <new>

#include "channel/cuda/stream_engine.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/own_memory.h"

namespace tutti::cuda {

GpuPorts::GpuPorts(const device::Control& control, int device, cudaStream_t stream)
    : control_(control), counters_(std::reinterpret_pointer_cast<Counters>(make_own_memory(device, sizeof(Counters)))) {
  const std::shared_ptr<std::byte> pinned = make_own_pinned(sizeof(Pinned));
  pinned_ = {pinned, new (pinned.get()) Pinned};
  void* memory = nullptr;
  check_cuda(cudaHostGetDevicePointer(&memory, pinned_.get(), 0), "cudaHostGetDevicePointer");
  pinned_on_device_ = static_cast<Pinned*>(memory);
  check_cuda(cudaMemsetAsync(counters_.get(), 0, sizeof(Counters), stream), "cudaMemsetAsync");
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
