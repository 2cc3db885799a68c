// CUDA tensors that a group allocates (Backend.allocate_tensor, FSDP2's buffers): in memory that all its ranks have
// registered, so that large calls on them copy nothing.
//
// Allocating is collective: all ranks ask for the same sizes in the same order. A buffer is made and registered when no
// free one fits, and serves again when its tensors are gone on every rank; which one is taken, the ranks agree on each
// time, by a call of a kilobyte on the CPU. Buffers are freed with the group: a peer may have them mapped.
//
// Order on the GPU is that of PyTorch's own allocator: a buffer serves again on the stream that it was made on, after
// what that stream holds, and after the group's asynchronous calls. Uses on other streams are the caller's to order
// (Tensor.record_stream does not hold a buffer back; FSDP2 orders by events).
//
// Thread rule: all members from any thread; the order of allocations must be the same on all ranks all the same.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include <mutex>
#include <vector>

#include "aten/cuda_side.h"
#include "communicator/buffer_choice.h"
#include "tutti/communicator.h"

namespace tutti::face {

class GroupBuffers {
 public:
  // Gives a tensor of so many bytes; an undefined one if there is no memory.
  using Source = c10::function_ref<at::Tensor(std::int64_t, c10::Device)>;

  // Both outlive it.
  GroupBuffers(Communicator& communicator, CudaSide& cuda) : communicator_(communicator), cuda_(cuda) {}

  // A tensor of `count` elements on a CUDA device, uninitialised. Ordinary memory where calls gain nothing from another
  // kind (below 1 MB, in a group of one), during a capture, if the ranks ask for different sizes, and where their GPUs
  // do not reach each other. Throws Error.
  at::Tensor allocate(std::int64_t count, const at::TensorOptions& options, Source source);

 private:
  struct Buffer {
    at::Tensor memory;
    std::size_t users;  // of its storage, while nobody uses it
    c10::Stream stream;
  };

  at::Tensor add(std::int64_t count, const at::TensorOptions& options, const c10::Stream& stream, Source source);

  Communicator& communicator_;
  CudaSide& cuda_;
  std::mutex mutex_;             // guards the members below; held while the ranks agree
  std::vector<Buffer> buffers_;  // in the order of making, which is the same on all ranks
  bool shares_ = true;           // false: registration has proved impossible, for all ranks
};

}  // namespace tutti::face
