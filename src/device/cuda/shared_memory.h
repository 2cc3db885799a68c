// Memory that several GPUs, of one process or of several, can write: device memory by the driver's virtual memory
// management, or pinned host memory where GPUs cannot reach each other.
//
// Ownership: an object owns its mapping here and its share of the physical memory, which lives as long as any process
// maps it: a peer may still write into memory whose exporter is gone. Thread rule: values of one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "base/unique_fd.h"

namespace tutti::cuda {

class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // As kernels see it.
  virtual std::byte* data() const noexcept = 0;
  virtual std::size_t bytes() const noexcept = 0;
  // As the host sees it; null where it does not.
  virtual std::byte* host() const noexcept { return nullptr; }
  // A descriptor for open_*() in another process.
  virtual UniqueFd export_fd() const = 0;
  // Lets one more device of this process read and write. Throws if it cannot.
  virtual void allow(int device) = 0;
};

// `bytes` of zeroed memory on `device`, at least; accessible to it. Zeroed on `stream`, and waits for nothing but that.
std::shared_ptr<SharedMemory> make_device_memory(int device, std::size_t bytes, cudaStream_t stream);
// The same with undefined contents; waits for nothing, also while a stream is being captured.
std::shared_ptr<SharedMemory> make_unset_device_memory(int device, std::size_t bytes);
// Memory that another process has exported, accessible to `device`.
std::shared_ptr<SharedMemory> open_device_memory(int device, int fd, std::size_t bytes);

// The same in host memory: an anonymous file, mapped and pinned for all devices of this process.
std::shared_ptr<SharedMemory> make_host_memory(std::size_t bytes);
std::shared_ptr<SharedMemory> open_host_memory(int fd, std::size_t bytes);

}  // namespace tutti::cuda
