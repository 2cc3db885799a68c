#include "torch/peer_tensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <limits>
#include <span>

#include "device/cpu/arena.h"

namespace tutti::face {

std::optional<std::pair<std::uint64_t, std::uint64_t>> lend_tensor(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.nbytes() == 0) return std::nullopt;
  Arena* const arena = process_arena();
  if (arena == nullptr) return std::nullopt;
  const std::uint64_t offset = arena->lend(tensor.const_data_ptr(), tensor.nbytes());
  if (offset == kNotMapped) return std::nullopt;
  return std::pair(arena->id(), offset);
}

void take_back_tensor(const at::Tensor& tensor, bool done) {
  Arena* const arena = process_arena();
  if (arena == nullptr) return;
  const std::span<std::byte> lent[] = {{static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()}};
  arena->take_back(lent, done);
}

std::optional<at::Tensor> peer_bytes(std::uint64_t arena, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<std::int64_t>::max() ||
      offset > std::numeric_limits<std::int64_t>::max()) {
    return std::nullopt;
  }
  // Finds the mapping that a group of this process has made; there is no descriptor here to make one by.
  const std::shared_ptr<PeerArena> mapped = PeerArena::open(-1, arena, static_cast<std::size_t>(offset + bytes));
  if (mapped == nullptr) return std::nullopt;
  const c10::InferenceMode off(false);
  return at::from_blob(
      mapped->data() + offset, {static_cast<std::int64_t>(bytes)}, [mapped](void*) {},
      at::TensorOptions().dtype(at::kByte));
}

}  // namespace tutti::face
