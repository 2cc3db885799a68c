// The scalars of ncclRedOpCreatePreMulSum, and who has made which on a communicator.
//
// A scalar is a rank's own: each multiplies its input by it. NCCL numbers the operations of a communicator, and a
// number comes again when its operation has been destroyed.
//
// Thread rule: any thread.
#pragma once

#include <mutex>
#include <optional>
#include <unordered_map>

#include "nccl/decision.h"

namespace tutti::nccl {

// A scalar on the host is read now. Nothing for types that Tutti does not scale, and where it lies nowhere that is
// known.
std::optional<Scaled> scaled_of(const void* scalar, ncclDataType_t type, ncclScalarResidence_t where) noexcept;

class ScaledSums {
 public:
  void add(ncclRedOp_t op, const Scaled& scaled);
  void remove(ncclRedOp_t op) noexcept;
  std::optional<Scaled> find(ncclRedOp_t op) const noexcept;

 private:
  mutable std::mutex mutex_;  // guards made_; a leaf
  std::unordered_map<unsigned, Scaled> made_;
};

}  // namespace tutti::nccl
