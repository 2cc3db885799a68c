// One collective call, as every face describes it to the communicator.
//
// Ownership: a Call points at the caller's memory and arrays; they stay valid until the call has completed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/types.h"

namespace tutti {

struct AlgorithmChoice;  // user_algorithm.h

// One block of memory a rank: either equal blocks laid out one after another, or a pointer and a size a rank.
struct Blocks {
  std::byte* base = nullptr;           // equal blocks: block r starts at base + r * bytes
  std::size_t bytes = 0;               // of each equal block
  void* const* pointers = nullptr;     // when set: block r starts at pointers[r] ...
  const std::size_t* sizes = nullptr;  // ... and has sizes[r] bytes (`bytes` when null)

  static Blocks single(const void* data, std::size_t bytes) noexcept {
    return {static_cast<std::byte*>(const_cast<void*>(data)), bytes, nullptr, nullptr};
  }
  static Blocks list(void* const* pointers, const std::size_t* sizes) noexcept { return {nullptr, 0, pointers, sizes}; }
  std::byte* data(int r) const noexcept {
    return pointers != nullptr ? static_cast<std::byte*>(pointers[r]) : base + static_cast<std::size_t>(r) * bytes;
  }
  std::size_t size(int r) const noexcept { return sizes != nullptr ? sizes[r] : bytes; }
};

// What each collective reads and writes (n = size of the group, "single" = one block of `count` elements):
//   all_reduce      input single          -> output single (may be the same memory)
//   reduce          input single          -> output single at the root (may be the same memory)
//   broadcast       input single at root  -> output single (input and output are the same memory, but at the root of a
//                                            call on GPUs)
//   all_gather      input single          -> output n blocks (the input may be its own block)
//   gather          input single          -> output n blocks at the root (the input may be its own block)
//   scatter         input n blocks at root-> output single (may be the own block of the input)
//   reduce_scatter  input n blocks        -> output single (may be the own block of the input)
//   all_to_all      input n blocks        -> output n blocks (not the same memory)
//   barrier         nothing
// Any other overlap of an input with an output is refused, but where the call `may_overlap`.
struct Call {
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  int root = -1;          // rooted collectives only
  bool uneven = false;    // block sizes may differ between ranks (all ranks agree on this flag)
  double factor = 1.0;    // kPremulSum: this rank's input is multiplied by it first
  std::size_t count = 0;  // elements of this rank's single block; for all_to_all of an equal input block
  // kPremulSum on a GPU (CudaCommunicator): when set, the factor instead. One real element of `dtype` (of a complex
  // one's parts) in memory that the device reads, in stream order, so also by each replay of a graph; not in the
  // output.
  const void* device_factor = nullptr;
  // On a GPU (CudaCommunicator): an input that overlaps the output otherwise is no error; what arrives is undefined
  // then.
  bool may_overlap = false;
  Blocks input;
  Blocks output;
  const AlgorithmChoice* choice = nullptr;  // run by this algorithm or raise; null: the library chooses
};

}  // namespace tutti
