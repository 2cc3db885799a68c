// CPU tensors that other processes of the host reach where they lie, without a call: what windows stand on.
//
// The owner lends a tensor of the arena and says where it is; a peer that has mapped that arena, as every rank of a
// group has mapped those of its host's others, makes a tensor over it. Nobody is told what is written there: that is up
// to those who use it.
//
// Ownership: the loan is the lender's, and keeps the tensor alive; a peer's tensor holds the mapping, not the memory's
// owner. Thread rule: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tutti::face {

// A tensor's memory in the hands of those peers that map it. Given back when this goes: then they are thought to write
// there still, and it becomes this process's alone, with its content; end() says that they do not.
class Loan {
 public:
  // The tensor is contiguous. Lends nothing where it is not in the arena, or peers must not touch it any more.
  explicit Loan(at::Tensor tensor);
  ~Loan() { take_back(/*done=*/false); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void end() { take_back(/*done=*/true); }
  // Tell a peer where its first byte is: the arena's id, and the offset there. Zero and zero where nothing is lent.
  std::uint64_t arena() const noexcept { return arena_; }
  std::uint64_t offset() const noexcept { return offset_; }

 private:
  void take_back(bool done) noexcept;

  const at::Tensor tensor_;
  std::uint64_t arena_ = 0, offset_ = 0;
};

// The bytes of a peer's loan, as this process maps them; undefined if it does not.
at::Tensor peer_bytes(std::uint64_t arena, std::uint64_t offset, std::uint64_t bytes);

}  // namespace tutti::face
