// The memory behind include/tutti/cuda_communicator.h's CudaMemory: the user's bytes, then the words of the channels'
// semaphores.
#pragma once

#include <memory>

#include "channel/cuda/gpu_group.h"
#include "tutti/cuda_communicator.h"

namespace tutti::cuda {

class CudaMemoryImpl final : public CudaMemory {
 public:
  CudaMemoryImpl(std::shared_ptr<GpuGroup> group, Store& store, const std::string& name, std::size_t bytes);

  std::size_t bytes() const noexcept override { return bytes_; }
  std::byte* data(int rank) const noexcept override { return memory_->data(rank); }
  device::MemoryChannel channel(int peer, int index) const override;

 private:
  const std::shared_ptr<GpuGroup> group_;
  const std::size_t bytes_;
  const std::size_t words_;  // offset of the semaphores' words
  const std::shared_ptr<SymmetricMemory> memory_;
};

}  // namespace tutti::cuda
