// Device memory that callers have allocated, mapped by all ranks of a group: collective to make.
//
// In one process a rank uses the other's pointers, with access for its own device. Between processes each rank walks
// its range allocation by allocation (expandable segments are many), exports each as the driver allows, and the others
// map them one after another. Imports are shared by all groups of a process: by owner, device, addresses and the
// driver's numbers of the allocations.
//
// Ownership: the memory stays its allocator's, who keeps it until all ranks have let go of their mappings: freeing it
// earlier is undefined (the driver's descriptors keep it alive, CUDA IPC does not). A RegisteredMemory owns the
// mappings of other processes' memory. Thread rule: const once made. Calls no CUDA function but through MemorySharing.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "device/cuda/memory_sharing.h"
#include "tutti/cuda/communicator.h"

namespace tutti::cuda {

class RegisteredMemory final : public CudaRegion {
 public:
  RegisteredMemory(std::size_t bytes, std::size_t ranks) : bytes_(bytes), data_(ranks) {}

  // Of a rank, in this process; or mapped, which it keeps.
  void place(std::size_t rank, std::byte* data) { data_[rank] = data; }
  void place(std::size_t rank, std::shared_ptr<std::byte> mapping, std::size_t offset) {
    data_[rank] = mapping.get() + offset;
    mappings_.push_back(std::move(mapping));
  }

  std::size_t bytes() const noexcept override { return bytes_; }
  std::byte* data(int rank) const noexcept override { return data_[static_cast<std::size_t>(rank)]; }

 private:
  const std::size_t bytes_;
  std::vector<std::byte*> data_;                      // by rank
  std::vector<std::shared_ptr<std::byte>> mappings_;  // of other processes' memory
};

struct RegisterRequest {
  std::string name;  // new in the group
  std::string secret;
  std::string process;  // process_token()
  int device = 0;
  std::chrono::milliseconds timeout{};
  std::vector<CudaRange> ranges;
  std::string problem;  // why this rank cannot take part; empty: it can
};

// One for each range. All ranks call it, with as many ranges of the same sizes. If one of them cannot share or map, all
// throw Error(kUnsupported) that says which and why, and nothing is registered; if the sizes differ, all throw
// Error(kInvalidArgument).
std::vector<std::shared_ptr<RegisteredMemory>> register_ranges(Bootstrap& bootstrap, const RegisterRequest& request,
                                                               const MemorySharing& sharing);

}  // namespace tutti::cuda
