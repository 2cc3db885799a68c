#include "channel/cuda/gpu_ports.h"

#include <cuda_runtime_api.h>

#include <new>

#include "channel/cuda/stream_engine.h"
#include "device/cuda/cuda_check.h"

namespace tutti::cuda {

GpuPorts::GpuPorts(const device::Control& control, int device) : control_(control) {
  try {
    auto engine = std::make_unique<StreamEngine>(device, control.size);
    void* memory = nullptr;
    check_cuda(cudaHostAlloc(&memory, sizeof(Pinned), cudaHostAllocPortable | cudaHostAllocMapped), "cudaHostAlloc");
    pinned_ = new (memory) Pinned;
    check_cuda(cudaHostGetDevicePointer(&memory, pinned_, 0), "cudaHostGetDevicePointer");
    pinned_on_device_ = static_cast<Pinned*>(memory);
    check_cuda(cudaMalloc(&memory, sizeof(Counters)), "cudaMalloc");
    counters_ = static_cast<Counters*>(memory);
    const Counters fresh{0, 0};
    check_cuda(cudaMemcpy(counters_, &fresh, sizeof(fresh), cudaMemcpyHostToDevice), "cudaMemcpy");
    const PortProxy::Shared shared{pinned_->slots, &pinned_->tail, pinned_->flushed, kRequests, control.host};
    proxy_ = std::make_unique<PortProxy>(std::move(engine), shared, control.rank, control.size);
  } catch (...) {
    release();
    throw;
  }
}

GpuPorts::~GpuPorts() { release(); }

void GpuPorts::release() noexcept {
  proxy_.reset();
  if (counters_ != nullptr) static_cast<void>(cudaFree(counters_));
  if (pinned_ != nullptr) static_cast<void>(cudaFreeHost(pinned_));
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
