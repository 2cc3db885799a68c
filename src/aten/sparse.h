// All-reduce of sparse COO tensors: what each exchange moves, and the sum of what came.
//
// Three exchanges: shape and number of non-zeros of every rank; indices; values (both uneven all-gathers). Then each
// rank adds the ranks' tensors in rank order, so all get the same bits.
//
// Ownership: owns its temporaries; the result is written into the caller's tensor by finish().
#pragma once

#include <ATen/core/Tensor.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tutti/call.h"

namespace tutti::face {

class SparseReduction {
 public:
  // ValueError unless `tensor` is a CPU COO tensor and `op` is SUM, AVG of floating point, or PREMUL_SUM.
  SparseReduction(const at::Tensor& tensor, const c10d::ReduceOp& op, int rank, int size);

  // Prepares the next exchange; false after the last one.
  bool next();
  const Call& call() const noexcept { return call_; }
  void finish();

 private:
  enum class Stage { kShapes, kIndices, kValues, kDone };

  void exchange_shapes();
  void check_shapes() const;
  void exchange_indices();
  void exchange_values();
  // An all-gather in which rank r gives elements_[r] elements of `sent` into one flat buffer.
  at::Tensor gather(const at::Tensor& sent, const std::vector<std::int64_t>& elements);
  std::int64_t nonzeros(int rank) const;

  const at::Tensor target_;
  const int rank_;
  const int size_;
  double scale_before_ = 1.0;
  double scale_after_ = 1.0;
  Stage stage_ = Stage::kShapes;
  at::Tensor own_;               // coalesced
  at::Tensor own_shape_;         // int64: sparse dims, dense dims, non-zeros, hash of the sizes
  at::Tensor shapes_;            // of all ranks
  at::Tensor sent_;              // what the current call reads
  at::Tensor indices_, values_;  // of all ranks, flat
  std::vector<void*> pointers_;
  std::vector<std::size_t> sizes_;
  Call call_;
};

}  // namespace tutti::face
