// The memory behind include/tutti/cuda/communicator.h's CudaMemory: the user's bytes, then the words of the semaphores
// of channels and ports.
//
// Lock: mutex_ guards all members below it; the locks of the ports are taken under it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "channel/cuda/gpu_group.h"
#include "tutti/cuda/communicator.h"

namespace tutti::cuda {

class CudaMemoryImpl final : public CudaMemory {
 public:
  // `problem`: as GpuGroup::allocate(). `freed` is called when it goes.
  CudaMemoryImpl(std::shared_ptr<GpuGroup> group, const std::string& name, std::size_t bytes,
                 const std::string& problem, std::function<void(const CudaMemoryImpl&)> freed);

  ~CudaMemoryImpl() override;

  std::size_t bytes() const noexcept override { return bytes_; }
  std::byte* data(int rank) const noexcept override { return memory_->data(rank); }
  device::MemoryChannel channel(int peer, int index) const override;
  device::PortChannel port(int peer, int index) override;
  std::uint32_t port_memory() override;

 private:
  void check_pair(const char* what, int peer, int index, int count) const;
  std::uint32_t number_with_proxy();

  const std::shared_ptr<GpuGroup> group_;
  const std::function<void(const CudaMemoryImpl&)> freed_;
  const std::size_t bytes_;
  const std::size_t words_;       // offset of the channels' words
  const std::size_t port_words_;  // and of the ports'
  const std::shared_ptr<SymmetricMemory> memory_;

  std::mutex mutex_;
  std::optional<std::uint32_t> number_;                 // with the proxy
  std::map<std::pair<int, int>, std::uint32_t> ports_;  // by peer and index: the proxy's numbers
};

}  // namespace tutti::cuda
