// Links between the ranks of one host: a ring of shared memory for each ordered pair.
//
// The memory is the caller's (a segment that all ranks of the host map) and outlives the transport; it is zeroed when
// the first rank starts. Links have no descriptor: who wrote rings the host's doorbell (PortWaker::ring).
// Thread rule: as Transport's: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "transport/link.h"

namespace tutti {

struct ShmTransportOptions {
  int index = 0;                      // of this rank among the ranks of the host
  std::vector<int> rank_of_index;     // ranks of the host, in the order of their indexes
  std::size_t ring_capacity = 65536;  // data bytes of one ring: a power of two, at least kLinkSlack
  std::function<std::byte*(int src, int dst)> ring_memory;  // by index: ring_bytes(ring_capacity), 128-byte aligned
  std::function<Status(int rank)> liveness;  // kOk while that rank lives; may be empty. Asked seldom, may be a syscall
};

class ShmTransport final : public Transport {
 public:
  // Throws Error(kInvalidArgument) for a capacity that is no power of two or too small.
  explicit ShmTransport(ShmTransportOptions options);
  ~ShmTransport() override;

  std::string_view name() const noexcept override { return "shm"; }
  Link* link(int peer) noexcept override;
  int accept_new(std::span<int> peers) noexcept override;

 private:
  class ShmLink;

  ShmTransportOptions options_;
  std::vector<std::unique_ptr<ShmLink>> links_;  // by index; null for ourselves
  std::size_t told_ = 0;                         // indexes that accept_new has gone through
};

}  // namespace tutti
