// What it takes to let other ranks use device memory that the caller has allocated: the driver's part of registration.
//
// An interface, so that tests on the host can play a driver. Thread rule: all members from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/unique_fd.h"

namespace tutti::cuda {

// One allocation, or one mapping of the driver's virtual memory management: what is exported as a whole.
struct Allocation {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  std::uint64_t id = 0;  // the driver's: no two allocations of a process ever have the same one; 0: it gives none
};

enum class ShareKind : int {
  kIpc = 0,         // cudaIpcMemHandle_t
  kDescriptor = 1,  // POSIX file descriptor
  kFabric = 2,      // CUmemFabricHandle
};

// What another process needs to map an allocation.
struct SharedAllocation {
  ShareKind kind = ShareKind::kIpc;
  UniqueFd fd;         // kDescriptor
  std::string handle;  // else its bytes
};

// One allocation of another process.
struct ForeignAllocation {
  ShareKind kind = ShareKind::kIpc;
  std::size_t bytes = 0;
  int fd = -1;  // stays the caller's
  std::string handle;
};

class MemorySharing {
 public:
  virtual ~MemorySharing() = default;

  // The allocation that holds `address`. Throws Error(kInvalidArgument) if that is no device memory of `device`.
  virtual Allocation find(int device, std::uintptr_t address) const = 0;
  // Throws Error(kUnsupported) that says what to do if the memory cannot leave this process.
  virtual SharedAllocation share(const Allocation& allocation) const = 0;
  // Maps allocations of another process one after another, accessible to `device`; the last owner unmaps them.
  virtual std::shared_ptr<std::byte> open(int device, std::span<const ForeignAllocation> allocations) const = 0;
  // Lets `device` use an allocation of this process that lies on `owner`.
  virtual void allow(int device, int owner, const Allocation& allocation) const = 0;
};

// The CUDA driver's.
const MemorySharing& cuda_memory_sharing();

}  // namespace tutti::cuda
