#include "aten/peer_tensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <limits>
#include <span>
#include <utility>

#include "device/cpu/arena.h"
#include "interpreter/without_python.h"

namespace tutti::face {

Loan::Loan(at::Tensor tensor) : tensor_(std::move(tensor)) {
  if (!tensor_.is_cpu() || tensor_.nbytes() == 0) return;
  Arena* const arena = process_arena();
  if (arena == nullptr) return;
  const std::uint64_t offset = arena->lend(tensor_.const_data_ptr(), tensor_.nbytes());
  if (offset == kNotMapped) return;
  arena_ = arena->id();
  offset_ = offset;
}

void Loan::take_back(bool done) noexcept {
  if (std::exchange(arena_, 0) == 0) return;
  const std::span<std::byte> lent[] = {{static_cast<std::byte*>(tensor_.data_ptr()), tensor_.nbytes()}};
  without_python([&] { process_arena()->take_back(lent, done); });
}

at::Tensor peer_bytes(std::uint64_t arena, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<std::int64_t>::max() ||
      offset > std::numeric_limits<std::int64_t>::max()) {
    return {};
  }
  // Finds the mapping that a group of this process has made; there is no descriptor here to make one by.
  const std::shared_ptr<PeerArena> mapped = PeerArena::open(-1, arena, static_cast<std::size_t>(offset + bytes));
  if (mapped == nullptr) return {};
  const c10::InferenceMode off(false);
  return at::from_blob(
      mapped->data() + offset, {static_cast<std::int64_t>(bytes)}, [mapped](void*) {},
      at::TensorOptions().dtype(at::kByte));
}

}  // namespace tutti::face
