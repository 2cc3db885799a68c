// Device memory that all ranks of a CudaCommunicator map, and that they can register.
//
// Ownership: what allocate() and register_memory() return is shared; the communicator outlives it. Thread rule: any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/stream_communicator.h"

namespace tutti {

// CUDA's names for what all devices have.
using CudaRange = DeviceRange;
using CudaRegion = DeviceRegion;

namespace device {
struct MemoryChannel;  // tutti/device/channel.cuh
struct PortChannel;    // tutti/device/port.cuh
}  // namespace device

// Zeroed device memory that all ranks have allocated together: for collectives without copies and for kernels of one's
// own. The communicator outlives it.
class CudaMemory : public CudaRegion {
 public:
  // A channel to `peer` over this memory, for kernels: its semaphore is one of kCudaChannels of the pair.
  virtual device::MemoryChannel channel(int peer, int index = 0) const = 0;
  // A port to `peer` over this memory: transfers that kernels ask for and copy engines carry out; its semaphore is one
  // of kCudaPorts of the pair. The communicator's first port starts a thread and allocates: make ports before kernels
  // that use them. Throws Error(kUnsupported) where the device cannot write values in stream order.
  virtual device::PortChannel port(int peer, int index = 0) = 0;
  // What PortChannel::to_memory and from_memory call this memory, for ports between two memories.
  virtual std::uint32_t port_memory() = 0;
};
inline constexpr int kCudaChannels = 64;
inline constexpr int kCudaPorts = 64;

// Memory of one GPU (-1: the current one) that any group can register, with undefined contents. Its last share waits
// for the device and frees it. Throws Error(kUnsupported) without the plug-in or a GPU, Error(kExhausted).
std::shared_ptr<std::byte> make_cuda_memory(std::size_t bytes, int device = -1);
// Within such memory, or between it and the host's; done when it returns. Throws Error(kInternal).
void copy_cuda_memory(void* to, const void* from, std::size_t bytes);

}  // namespace tutti
