// A call of any collective on memory of its own: to ask which algorithm it takes, and to run, check and time it.
//
// All-reduce and broadcast are in place, as they are in torch; the other collectives are not. Root is rank 0.
//
// Ownership: a SampleCall owns the memory that its Call points at. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <span>

#include "tutti/call.h"

namespace tutti {

class Arena;

struct SampleShape {
  Collective collective = Collective::kAllReduce;
  std::size_t bytes = 0;  // of one rank's block
  int ranks = 2;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool mapped = false;  // in memory that all ranks of the host map
};

class SampleCall {
 public:
  // Only address space: pages cost memory when they are touched. Throws Error(kExhausted).
  explicit SampleCall(const SampleShape& shape);

  const Call& call() const noexcept { return call_; }

  // Small whole numbers, different in every rank's every block, whose sums are exact in every type; outputs that are no
  // inputs hold something else. Only for f16, bf16, f32, f64, i32 and i64: Error(kUnsupported) otherwise.
  void fill(int rank);
  // Whether the outputs of `rank` are what the collective (of op sum) makes of all ranks' fill().
  bool right(int rank) const;
  // Zeros everywhere: stays so however often the call is made.
  void clear();

  // The memory of its inputs and of its outputs: all that fill() and clear() write and right() reads. The second is
  // empty where the call is in place.
  std::span<std::byte> inputs() const noexcept;
  std::span<std::byte> outputs() const noexcept;

 private:
  class Memory {
   public:
    Memory(std::size_t bytes, bool mapped);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::byte* data() const noexcept { return data_; }

   private:
    std::size_t bytes_;
    std::byte* data_ = nullptr;
    Arena* arena_ = nullptr;
  };

  std::byte* block(const Memory& memory, std::size_t index) const noexcept;

  const SampleShape shape_;
  Memory input_;
  Memory output_;
  Call call_;
};

}  // namespace tutti
