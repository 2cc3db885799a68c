// Memory of one size on every rank, mapped by all ranks: collective to make.
//
// Ownership: owns the mappings; physical memory lives as long as anybody maps it. Thread rule: const once made.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "device/cuda/shared_memory.h"

namespace tutti::cuda {

struct SymmetricRequest {
  std::string name;  // new in the group
  std::string secret;
  int device = 0;
  bool on_device = true;          // else pinned host memory
  cudaStream_t stream = nullptr;  // zeroes memory of the device: nothing else may keep it waiting
  std::size_t bytes = 0;          // equal on all ranks
  std::chrono::milliseconds timeout{};
  std::string problem;  // why this rank cannot take part, if it cannot: then nobody gets any
};

class SymmetricMemory {
 public:
  // All ranks call it. Throws the same Error(kUnsupported) on all of them if one cannot allocate or map.
  SymmetricMemory(Bootstrap& bootstrap, const SymmetricRequest& request);

  // Of rank r, as kernels on this rank's device see it. Zeroed when made.
  std::byte* data(int r) const noexcept { return memory_[static_cast<std::size_t>(r)]->data(); }
  // The same as the host sees it, of memory on the host.
  std::byte* host(int r) const noexcept { return memory_[static_cast<std::size_t>(r)]->host(); }
  // Of rank r's GPU.
  const std::string& uuid(int r) const noexcept { return uuids_[static_cast<std::size_t>(r)]; }
  // Most ranks that share one GPU, and the fewest multiprocessors of any: the same on all ranks.
  int sharers() const noexcept { return sharers_; }
  int processors() const noexcept { return processors_; }

 private:
  int rank_;
  std::vector<std::shared_ptr<SharedMemory>> memory_;  // by rank
  std::vector<std::string> uuids_;                     // by rank
  int sharers_ = 1;
  int processors_ = 1;
};

}  // namespace tutti::cuda
