// CPU tensors that other processes of the host reach where they lie, without a call: what windows stand on.
//
// The owner lends a tensor of the arena and says where it is; a peer that has mapped that arena, as every rank of a
// group has mapped those of its host's others, makes a tensor over it. Nobody is told what is written there: that is up
// to those who use it.
//
// Ownership: the loan is the lender's, who keeps the tensor alive; a peer's tensor holds the mapping, not the memory's
// owner. Thread rule: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace tutti::face {

// The arena's id and the offset of the tensor's first byte there, until take_back(). None if it is not there, or peers
// must not touch it any more. The tensor is contiguous.
std::optional<std::pair<std::uint64_t, std::uint64_t>> lend_tensor(const at::Tensor& tensor);

// Ends a loan. Unless the peers are `done`, they may still write to where the tensor was, and it is this process's
// alone when this returns, with its content.
void take_back_tensor(const at::Tensor& tensor, bool done);

// The bytes of a loan, as this process maps them; none if it does not.
std::optional<at::Tensor> peer_bytes(std::uint64_t arena, std::uint64_t offset, std::uint64_t bytes);

}  // namespace tutti::face
