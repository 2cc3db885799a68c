// The ports of one communicator on a GPU: the ring, its counters, the proxy and its streams.
//
// Made at the first port.
// Ownership: owns all of it. Thread rule: const once made; the proxy has its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "channel/cuda/port_proxy.h"
#include "tutti/device/port.cuh"

namespace tutti::cuda {

class GpuPorts {
 public:
  // Of the current device. `stream`: of the group itself; awaited.
  GpuPorts(const device::Control& control, int device, cudaStream_t stream);
  GpuPorts(const GpuPorts&) = delete;
  GpuPorts& operator=(const GpuPorts&) = delete;

  PortProxy& proxy() noexcept { return *proxy_; }
  // For kernels, without what belongs to one memory: numbers and semaphore.
  device::PortChannel channel(int peer) const noexcept;

 private:
  static constexpr std::uint32_t kRequests = 512;
  // In pinned host memory. Each word that one side polls has a line of its own.
  struct Pinned {
    device::PortSlot slots[kRequests] = {};
    alignas(128) std::uint64_t tail = 0;
    alignas(128) std::uint64_t flushed[device::kMaxRanks] = {};
  };
  struct Counters {  // in device memory
    std::uint64_t head, known_tail;
  };

  const device::Control control_;
  std::shared_ptr<Pinned> pinned_;      // as the host sees it
  Pinned* pinned_on_device_ = nullptr;  // as kernels do
  std::shared_ptr<Counters> counters_;  // on the GPU
  std::unique_ptr<PortProxy> proxy_;    // goes first: its thread reads the memory
};

}  // namespace tutti::cuda
