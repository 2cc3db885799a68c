// A stand-in for where backends register their allocators (TorchCommBackend.hpp).
#pragma once

#include <c10/core/Allocator.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace torch::comms {

class TorchCommFactory {
 public:
  using AllocatorFactory = std::function<std::shared_ptr<c10::Allocator>()>;

  static TorchCommFactory& get();
  void register_allocator_factory(const std::string& backend, const AllocatorFactory& factory) {
    allocators_.emplace(backend, factory);
  }
  std::shared_ptr<c10::Allocator> get_allocator(const std::string& backend) { return allocators_.at(backend)(); }

 private:
  std::map<std::string, AllocatorFactory> allocators_;
};

}  // namespace torch::comms
