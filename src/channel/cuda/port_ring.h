// The reading side of the ring of requests of include/tutti/device/port.cuh: one thread of the host, the proxy.
#pragma once

#include <optional>

#include "tutti/device/port.cuh"

namespace tutti::cuda {

class PortRing {
 public:
  // In memory that the writers see too; all zero at the start. `size` is a power of two.
  PortRing(device::PortSlot* slots, std::uint64_t* tail, std::uint32_t size) noexcept
      : slots_(slots), tail_(tail), size_(size) {}

  // Requests taken so far: the position of the one that front() shows.
  std::uint64_t position() const noexcept { return position_; }

  // The oldest request, if it is complete. It stays in the ring.
  std::optional<device::PortRequest> front() const noexcept {
    const device::PortSlot& slot = slots_[position_ & (size_ - 1)];
    // acquire: the rest of the request, and what its sender has written before; pairs with the release in push().
    const std::uint64_t commit = device::load_acquire(&slot.commit);
    if (commit >> 63 != device::port_parity(position_, size_)) return std::nullopt;
    constexpr std::uint64_t kId = device::kPortIds - 1;
    device::PortRequest request;
    request.kind = static_cast<std::uint32_t>(commit >> 60 & 7);
    request.port = static_cast<std::uint32_t>(commit >> 40 & kId);
    request.to_memory = static_cast<std::uint32_t>(commit >> 20 & kId);
    request.from_memory = static_cast<std::uint32_t>(commit & kId);
    const device::Pair64 offsets = device::load_relaxed(&slot.offsets);
    request.to = offsets.lo;
    request.from = offsets.hi;
    request.bytes = device::load_relaxed(&slot.bytes);
    return request;
  }

  // Gives the slot of front() back.
  void pop() noexcept {
    // release: the slot has been read; pairs with the acquire of a writer that wants it.
    device::store_release(tail_, ++position_);
  }

 private:
  device::PortSlot* slots_;
  std::uint64_t* tail_;
  std::uint32_t size_;
  std::uint64_t position_ = 0;
};

}  // namespace tutti::cuda
