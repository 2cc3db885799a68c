// Tensors as the memory that a Call points at: dtypes, reduce operations, layouts.
//
// A tensor that is contiguous is used in place. Any other layout (strides, conjugate or negative views) is gathered
// into a contiguous temporary, and outputs are written back after the call.
//
// Ownership: a Prepared owns the temporaries, the pointer lists and, when asked to, the caller's tensors; it stays
// where it is while its call runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "tutti/call.h"

namespace tutti::face {

// Whether a call takes the tensor's own memory: its bytes are in order, and no conjugation, negation or implied zero is
// pending. Of any other a Prepared makes a temporary.
bool usable_in_place(const at::Tensor& tensor);

// Elements from the first to behind the last in memory, whatever the strides leave out.
std::int64_t extent_of(const at::Tensor& tensor);

// kByte for what Tutti only moves (quantised, sub-byte and shell types).
DataType to_dtype(at::ScalarType type) noexcept;

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;            // of kPremulSum
  at::Tensor device_factor = {};  // of kPremulSum, instead, when defined: one element that GPUs read when the call runs
};
// `outputs`: what the call writes, on one device. A factor that is a CUDA tensor is left there if they are CUDA
// tensors; any other tensor is read here, which waits for it. ValueError for an operation that does not exist or a
// factor on another GPU, TypeError for a CUDA factor of another dtype.
Reduction to_reduction(const c10d::ReduceOp& op, at::ArrayRef<at::Tensor> outputs);

// Refuses what has no memory of its own, or not enough, on a device that Tutti serves (ValueError naming the call).
void require_dense(const at::Tensor& tensor, const char* call);
// The one tensor of a call that takes one a rank; any other number is refused (ValueError naming the call).
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call);
const at::Tensor& only_dense(const std::vector<at::Tensor>& tensors, const char* call);  // as require_dense has it
void require_same_dtype(const at::Tensor& tensor, const at::Tensor& like, const char* call);

class Prepared {
 public:
  explicit Prepared(bool keep) noexcept : keep_(keep) {}
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  // Memory with the tensor's elements.
  void* input(const at::Tensor& tensor);
  // Memory whose elements become the tensor's; holds its present ones when `read` is set. ValueError if elements of
  // the tensor share memory.
  void* output(const at::Tensor& tensor, bool read = false);

  Blocks single_input(const at::Tensor& tensor) { return Blocks::single(input(tensor), bytes_of(tensor)); }
  Blocks single_output(const at::Tensor& tensor) { return Blocks::single(output(tensor), bytes_of(tensor)); }
  // One block a tensor; each list at most once a call.
  Blocks input_list(at::ArrayRef<at::Tensor> tensors);
  Blocks output_list(at::ArrayRef<at::Tensor> tensors);
  // Rows of one tensor as blocks of splits[r] rows.
  Blocks input_rows(const at::Tensor& tensor, at::ArrayRef<int64_t> splits, int size);
  Blocks output_rows(const at::Tensor& tensor, at::ArrayRef<int64_t> splits, int size);

  void reduce_by(const Reduction& reduction);
  const at::Tensor& device_factor() const noexcept { return device_factor_; }

  // The elements of `tensor`, as the call counts them.
  void describe(Collective collective, const at::Tensor& tensor) noexcept;
  static std::size_t bytes_of(const at::Tensor& tensor) noexcept {
    return static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
  }
  static std::size_t count_of(const at::Tensor& tensor) noexcept;

  // The elements of several tensors of one dtype in one temporary, which write_back() takes apart again.
  Blocks flatten(at::ArrayRef<at::Tensor> tensors);

  // Adds the tensors that must live until the call is over, temporaries among them.
  void append_kept(std::vector<at::Tensor>& tensors) const;

  bool has_write_backs() const noexcept { return !targets_.empty() || !segments_.empty(); }
  void write_back();

  Call call;

 private:
  using Pointers = c10::SmallVector<void*, 8>;
  using Sizes = c10::SmallVector<std::size_t, 8>;
  struct Segment {
    void* target;
    const void* source;
    std::size_t bytes;
  };

  // Of a tensor that is used where it lies the storage, too: it may be given another while the call runs.
  void keep(const at::Tensor& tensor) {
    kept_.push_back(tensor);
    storages_.push_back(tensor.storage());
  }

  const bool keep_;
  Pointers input_pointers_, output_pointers_;
  Sizes input_sizes_, output_sizes_;
  at::Tensor device_factor_;
  c10::SmallVector<at::Tensor, 2> kept_;
  c10::SmallVector<c10::Storage, 2> storages_;
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 1> targets_;  // (target, temporary)
  std::vector<Segment> segments_;                                   // parts of a flat temporary
};

}  // namespace tutti::face
