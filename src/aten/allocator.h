// Tensors in the arena that all ranks of the host map: tutti.empty, and the allocator that can stand in for PyTorch's.
//
// Ownership: the allocators live as long as the process, as c10's registry demands: tensors made by one may outlive
// everything else. Their memory is told from the previous allocator's by its address, so that each frees both.
// Thread rule: allocation from any thread; switching the process's allocator from one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>

namespace tutti::face {

// Allocates everything in the arena; throws tutti::Error(kExhausted) when it is full or could not be made.
c10::Allocator& arena_allocator();

// An ordinary CPU tensor where the arena has no room: each rank may decide that by itself, since calls look at where
// the ranks' tensors lie.
at::Tensor empty_in_arena(at::IntArrayRef sizes, at::ScalarType dtype);

// From now on CPU tensors of at least `threshold` bytes lie in the arena while it has room; smaller ones come from the
// allocator that was there before. Off again: new tensors come from that one only.
void use_shared_allocator(bool enabled, std::size_t threshold);
bool shared_allocator_enabled() noexcept;

struct ArenaStats {
  std::size_t bytes = 0;  // of address space; 0: no arena
  std::size_t in_use = 0;
  std::size_t cached = 0;
  std::size_t quarantined = 0;
};
ArenaStats arena_stats() noexcept;
bool is_mapped(const void* data, std::size_t bytes) noexcept;

}  // namespace tutti::face
