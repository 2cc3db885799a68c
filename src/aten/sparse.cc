#include "aten/sparse.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "aten/errors.h"
#include "aten/tensors.h"

namespace tutti::face {
namespace {

constexpr int kShapeWords = 4;

std::int64_t hash_of(at::IntArrayRef sizes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a over the sizes
  for (const std::int64_t size : sizes) hash = (hash ^ static_cast<std::uint64_t>(size)) * 0x100000001b3ULL;
  return static_cast<std::int64_t>(hash);
}

}  // namespace

SparseReduction::SparseReduction(const at::Tensor& tensor, const c10d::ReduceOp& op, int rank, int size)
    : target_(tensor), rank_(rank), size_(size) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kSparse) {
    refuse("all_reduce: of the sparse layouts Tutti takes COO tensors on the CPU");
  }
  const Reduction reduction = to_reduction(op, tensor);
  const bool fractions = tensor.is_floating_point() || tensor.is_complex();
  if (reduction.op == ReduceOp::kAvg && fractions) {
    scale_after_ = 1.0 / size;
  } else if (reduction.op == ReduceOp::kPremulSum) {
    if (!fractions)
      refuse("all_reduce: premul_sum of integers would lose its fraction: use sum, or convert to a floating type");
    scale_before_ = reduction.factor;
  } else if (reduction.op != ReduceOp::kSum) {
    refuse("all_reduce of sparse tensors sums (SUM, PREMUL_SUM, AVG of floating point)");
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  own_ = tensor.coalesce();
  if (scale_before_ != 1.0) own_ = own_.mul(scale_before_).coalesce();
  own_shape_ = at::tensor({own_.sparse_dim(), own_.dense_dim(), own_._nnz(), hash_of(own_.sizes())}, at::kLong);
}

bool SparseReduction::next() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  switch (stage_) {
    case Stage::kShapes:
      exchange_shapes();
      stage_ = Stage::kIndices;
      return true;
    case Stage::kIndices:
      check_shapes();
      exchange_indices();
      stage_ = Stage::kValues;
      return true;
    case Stage::kValues:
      exchange_values();
      stage_ = Stage::kDone;
      return true;
    case Stage::kDone:
      break;
  }
  return false;
}

void SparseReduction::exchange_shapes() {
  shapes_ = gather(own_shape_, std::vector<std::int64_t>(size_, kShapeWords)).view({size_, kShapeWords});
}

void SparseReduction::check_shapes() const {
  const auto shapes = shapes_.accessor<std::int64_t, 2>();
  for (int r = 0; r < size_; ++r) {
    for (const int word : {0, 1, 3}) {
      if (shapes[r][word] == shapes[rank_][word]) continue;
      throw_backend_error("all_reduce of sparse tensors: the shape on rank " + std::to_string(r) +
                          " is not the one on rank " + std::to_string(rank_));
    }
  }
}

std::int64_t SparseReduction::nonzeros(int rank) const { return shapes_.accessor<std::int64_t, 2>()[rank][2]; }

void SparseReduction::exchange_indices() {
  std::vector<std::int64_t> elements(size_);
  for (int r = 0; r < size_; ++r) elements[r] = nonzeros(r) * own_.sparse_dim();
  indices_ = gather(own_._indices().contiguous(), elements);
}

void SparseReduction::exchange_values() {
  const std::int64_t own_nonzeros = own_._nnz();
  const at::Tensor values = own_._values().contiguous();
  std::int64_t each = 1;
  for (std::int64_t d = 1; d < values.dim(); ++d) each *= values.size(d);
  std::vector<std::int64_t> elements(size_);
  for (int r = 0; r < size_; ++r) elements[r] = nonzeros(r) * each;
  TORCH_INTERNAL_ASSERT(own_nonzeros == nonzeros(rank_));
  values_ = gather(values, elements);
}

at::Tensor SparseReduction::gather(const at::Tensor& sent, const std::vector<std::int64_t>& elements) {
  std::int64_t total = 0;
  bool equal = true;
  for (const std::int64_t count : elements) {
    total += count;
    equal = equal && count == elements.front();
  }
  at::Tensor all = at::empty({total}, sent.options());
  sent_ = sent;
  pointers_.clear();
  sizes_.clear();
  std::byte* next = total == 0 ? nullptr : static_cast<std::byte*>(all.data_ptr());
  for (const std::int64_t count : elements) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sent.itemsize();
    pointers_.push_back(next);
    sizes_.push_back(bytes);
    if (next != nullptr) next += bytes;
  }
  call_ = Call{};
  call_.collective = Collective::kAllGather;
  call_.dtype = to_dtype(sent.scalar_type());
  call_.count = Prepared::count_of(sent);
  call_.uneven = !equal;
  call_.input = Blocks::single(sent.numel() == 0 ? nullptr : sent.data_ptr(), Prepared::bytes_of(sent));
  call_.output = Blocks::list(pointers_.data(), sizes_.data());
  return all;
}

void SparseReduction::finish() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const std::int64_t dims = own_.sparse_dim();
  std::vector<std::int64_t> value_shape(own_._values().sizes().begin(), own_._values().sizes().end());
  std::vector<at::Tensor> indices, values;
  std::int64_t index_at = 0, value_at = 0;
  const std::int64_t total = values_.numel();
  std::int64_t all_nonzeros = 0;
  for (int r = 0; r < size_; ++r) all_nonzeros += nonzeros(r);
  const std::int64_t each = all_nonzeros == 0 ? 0 : total / all_nonzeros;
  for (int r = 0; r < size_; ++r) {
    const std::int64_t count = nonzeros(r);
    value_shape[0] = count;
    indices.push_back(indices_.narrow(0, index_at, count * dims).view({dims, count}));
    values.push_back(values_.narrow(0, value_at, count * each).view(value_shape));
    index_at += count * dims;
    value_at += count * each;
  }
  // Duplicate indices are added in the order in which they stand here: by rank.
  at::Tensor sum = at::_sparse_coo_tensor_unsafe(at::cat(indices, 1), at::cat(values, 0), own_.sizes(), own_.options());
  sum = sum.coalesce();
  if (scale_after_ != 1.0) sum = sum.mul(scale_after_).coalesce();
  at::Tensor target = target_;
  target.copy_(sum);
}

}  // namespace tutti::face
