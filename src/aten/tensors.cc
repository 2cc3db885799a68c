#include "aten/tensors.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <array>
#include <cstring>
#include <utility>

#include "aten/compat.h"
#include "aten/errors.h"

namespace tutti::face {
namespace {

// Elements that share memory cannot each become a result. Asked before anything is sent: copy_ would refuse afterwards.
void require_apart(const at::Tensor& output) {
  if (at::has_internal_overlap(output) != at::MemOverlap::Yes) return;
  refuse("an output has elements that share memory (it was made by expand()): pass its clone()");
}

// data_ptr() of a tensor with no elements may be null or refuse; nobody reads it.
void* memory_of(const at::Tensor& tensor) { return tensor.numel() == 0 ? nullptr : tensor.data_ptr(); }

}  // namespace

bool usable_in_place(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kLazy{c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                      c10::DispatchKey::ZeroTensor};
  return tensor.is_contiguous() && !tensor.key_set().has_any(kLazy);
}

std::int64_t extent_of(const at::Tensor& tensor) {
  std::int64_t elements = tensor.numel() == 0 ? 0 : 1;
  for (std::int64_t i = 0; elements != 0 && i < tensor.dim(); ++i) elements += (tensor.size(i) - 1) * tensor.stride(i);
  return elements;
}

namespace {

// A storage that was made smaller leaves its tensors as they were, over memory that is no longer theirs.
void require_memory(const at::Tensor& tensor, const char* call) {
  if (!tensor.has_storage() || tensor.numel() == 0) return;
  const std::size_t needed = static_cast<std::size_t>(tensor.storage_offset() + extent_of(tensor)) * tensor.itemsize();
  const std::size_t held = tensor.storage().nbytes();
  if (needed <= held) return;
  refuse(std::string(call) + ": the tensor needs " + std::to_string(needed) + " bytes, its storage has " +
         std::to_string(held) + ": it was resized");
}

at::Tensor contiguous_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.options(), at::MemoryFormat::Contiguous);
}

std::int64_t row_elements(const at::Tensor& tensor) {
  std::int64_t elements = 1;
  for (std::int64_t i = 1; i < tensor.dim(); ++i) elements *= tensor.size(i);
  return elements;
}

}  // namespace

DataType to_dtype(at::ScalarType type) noexcept {
  using enum at::ScalarType;
  using enum DataType;
  static constexpr auto kTable = [] {
    std::array<DataType, static_cast<std::size_t>(NumOptions)> table{};
    table.fill(kByte);
    constexpr std::pair<at::ScalarType, DataType> kKnown[] = {{Bool, kBool},
                                                              {Byte, kUint8},
                                                              {Char, kInt8},
                                                              {UInt16, kUint16},
                                                              {Short, kInt16},
                                                              {UInt32, kUint32},
                                                              {Int, kInt32},
                                                              {UInt64, kUint64},
                                                              {Long, kInt64},
                                                              {Float8_e4m3fn, kFloat8E4M3fn},
                                                              {Float8_e5m2, kFloat8E5M2},
                                                              {Float8_e4m3fnuz, kFloat8E4M3fnuz},
                                                              {Float8_e5m2fnuz, kFloat8E5M2fnuz},
                                                              {Float8_e8m0fnu, kFloat8E8M0fnu},
                                                              {BFloat16, kBfloat16},
                                                              {Half, kFloat16},
                                                              {Float, kFloat32},
                                                              {Double, kFloat64},
                                                              {ComplexHalf, kComplex32},
                                                              {ComplexFloat, kComplex64},
                                                              {ComplexDouble, kComplex128}};
    for (const auto& [torchs, ours] : kKnown) table[static_cast<std::size_t>(torchs)] = ours;
    return table;
  }();
  const auto place = static_cast<std::size_t>(type);
  return place < kTable.size() ? kTable[place] : kByte;
}

namespace {

Reduction premultiplied(const PremulSumSupplement& supplement, at::ArrayRef<at::Tensor> outputs) {
  const at::Tensor& factor = supplement.tensor_factor;
  if (!factor.defined()) return {ReduceOp::kPremulSum, supplement.double_factor};
  if (outputs.empty() || !outputs.front().is_cuda() || !factor.is_cuda()) {
    return {ReduceOp::kPremulSum, factor.item().toDouble()};
  }
  bool overwritten = false;  // the GPU reads the factor while it writes the outputs
  for (const at::Tensor& output : outputs) {
    if (!output.is_floating_point() && !output.is_complex()) return {ReduceOp::kPremulSum};  // refused, as on the CPU
    if (factor.device() != output.device()) {
      refuse("PREMUL_SUM: the factor is on " + factor.device().str() + ", the data on " + output.device().str());
    }
    const at::ScalarType wanted = c10::toRealValueType(output.scalar_type());
    if (factor.scalar_type() != wanted) {
      refuse_type(std::string("PREMUL_SUM: a factor in GPU memory is read as it is: for these data it must be ") +
                  at::toString(wanted) + ", not " + at::toString(factor.scalar_type()) +
                  "; convert it by factor.to(), or give a Python number");
    }
    overwritten = overwritten || output.is_alias_of(factor);
  }
  if (!overwritten && usable_in_place(factor)) return {ReduceOp::kPremulSum, 1.0, factor};
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return {ReduceOp::kPremulSum, 1.0, contiguous_like(factor).copy_(factor)};
}

}  // namespace

Reduction to_reduction(const c10d::ReduceOp& op, at::ArrayRef<at::Tensor> outputs) {
  using Torchs = c10d::ReduceOp::RedOpType;
  static constexpr std::pair<Torchs, ReduceOp> kPlain[] = {
      {Torchs::SUM, ReduceOp::kSum}, {Torchs::AVG, ReduceOp::kAvg},  {Torchs::PRODUCT, ReduceOp::kProduct},
      {Torchs::MIN, ReduceOp::kMin}, {Torchs::MAX, ReduceOp::kMax},  {Torchs::BAND, ReduceOp::kBand},
      {Torchs::BOR, ReduceOp::kBor}, {Torchs::BXOR, ReduceOp::kBxor}};
  for (const auto& [torchs, ours] : kPlain) {
    if (op.op_ == torchs) return {ours};
  }
  if (op.op_ == Torchs::PREMUL_SUM) {
    const auto* premul = dynamic_cast<const PremulSumSupplement*>(op.supplement_.get());
    if (premul == nullptr) refuse("tutti: PREMUL_SUM without a factor");
    return premultiplied(*premul, outputs);
  }
  refuse("tutti: unknown reduce operation " + std::to_string(static_cast<int>(op.op_)));
}

void require_dense(const at::Tensor& tensor, const char* call) {
  if (!tensor.defined()) refuse(std::string(call) + ": undefined tensor");
  if (!tensor.device().is_cpu() && !tensor.device().is_cuda()) {
    refuse(std::string(call) + ": tutti takes CPU and CUDA tensors, got " + tensor.device().str());
  }
  if (tensor.layout() != at::kStrided) refuse(std::string(call) + ": only all_reduce takes sparse tensors");
  require_memory(tensor, call);
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* call) {
  if (tensors.size() != 1) {
    refuse(std::string(call) + " takes one tensor a rank, got " + std::to_string(tensors.size()));
  }
  return tensors.front();
}

const at::Tensor& only_dense(const std::vector<at::Tensor>& tensors, const char* call) {
  const at::Tensor& tensor = only(tensors, call);
  require_dense(tensor, call);
  return tensor;
}

void require_same_dtype(const at::Tensor& tensor, const at::Tensor& like, const char* call) {
  require_dense(tensor, call);
  if (tensor.device() != like.device()) {
    refuse(std::string(call) + ": all tensors must be on one device, got " + tensor.device().str() + " and " +
           like.device().str());
  }
  if (tensor.scalar_type() == like.scalar_type()) return;
  refuse_type(std::string(call) + ": all tensors must have one dtype, got " + at::toString(tensor.scalar_type()) +
              " and " + at::toString(like.scalar_type()));
}

void* Prepared::input(const at::Tensor& tensor) {
  if (usable_in_place(tensor)) {
    if (keep_) keep(tensor);
    return memory_of(tensor);
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  kept_.push_back(contiguous_like(tensor).copy_(tensor));
  return memory_of(kept_.back());
}

void* Prepared::output(const at::Tensor& tensor, bool read) {
  if (usable_in_place(tensor)) {
    if (keep_) keep(tensor);
    return memory_of(tensor);
  }
  require_apart(tensor);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  targets_.emplace_back(tensor, contiguous_like(tensor));
  at::Tensor& temporary = targets_.back().second;
  if (read) temporary.copy_(tensor);
  return memory_of(temporary);
}

Blocks Prepared::input_list(at::ArrayRef<at::Tensor> tensors) {
  for (const auto& tensor : tensors) {
    input_pointers_.push_back(input(tensor));
    input_sizes_.push_back(bytes_of(tensor));
  }
  return Blocks::list(input_pointers_.data(), input_sizes_.data());
}

Blocks Prepared::output_list(at::ArrayRef<at::Tensor> tensors) {
  for (const auto& tensor : tensors) {
    output_pointers_.push_back(output(tensor));
    output_sizes_.push_back(bytes_of(tensor));
  }
  return Blocks::list(output_pointers_.data(), output_sizes_.data());
}

namespace {

// Splits `bytes` at `base` by rows; an empty list of splits means equal parts.
template <typename Pointers, typename Sizes>
void split_rows(std::byte* base, const at::Tensor& tensor, at::ArrayRef<int64_t> splits, int size, Pointers& pointers,
                Sizes& sizes) {
  const std::size_t row = static_cast<std::size_t>(row_elements(tensor)) * tensor.itemsize();
  const std::size_t equal = tensor.dim() == 0 ? 0 : static_cast<std::size_t>(tensor.size(0) / size);
  for (int r = 0; r < size; ++r) {
    const std::size_t bytes = row * (splits.empty() ? equal : static_cast<std::size_t>(splits[r]));
    pointers.push_back(base);
    sizes.push_back(bytes);
    if (base != nullptr) base += bytes;
  }
}

}  // namespace

Blocks Prepared::input_rows(const at::Tensor& tensor, at::ArrayRef<int64_t> splits, int size) {
  split_rows(static_cast<std::byte*>(input(tensor)), tensor, splits, size, input_pointers_, input_sizes_);
  return Blocks::list(input_pointers_.data(), input_sizes_.data());
}

Blocks Prepared::output_rows(const at::Tensor& tensor, at::ArrayRef<int64_t> splits, int size) {
  split_rows(static_cast<std::byte*>(output(tensor)), tensor, splits, size, output_pointers_, output_sizes_);
  return Blocks::list(output_pointers_.data(), output_sizes_.data());
}

Blocks Prepared::flatten(at::ArrayRef<at::Tensor> tensors) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::int64_t elements = 0;
  for (const auto& tensor : tensors) elements += tensor.numel();
  const at::Tensor flat = at::empty({elements}, tensors.front().options());
  kept_.push_back(flat);
  call.count = static_cast<std::size_t>(elements);
  auto* next = static_cast<std::byte*>(memory_of(flat));
  std::int64_t done = 0;
  for (const auto& tensor : tensors) {
    const std::size_t bytes = bytes_of(tensor);
    if (bytes == 0) continue;
    if (usable_in_place(tensor) && tensor.is_cpu()) {
      // Not through copy_: its dispatch takes longer than moving a small tensor.
      if (keep_) keep(tensor);
      segments_.push_back({memory_of(tensor), next, bytes});
      std::memcpy(next, segments_.back().target, bytes);
    } else {
      require_apart(tensor);
      targets_.emplace_back(tensor, flat.narrow(0, done, tensor.numel()).view(tensor.sizes()));
      targets_.back().second.copy_(tensor);
    }
    next += bytes;
    done += tensor.numel();
  }
  return Blocks::single(memory_of(flat), bytes_of(flat));
}

std::size_t Prepared::count_of(const at::Tensor& tensor) noexcept {
  return to_dtype(tensor.scalar_type()) == DataType::kByte ? bytes_of(tensor)
                                                           : static_cast<std::size_t>(tensor.numel());
}

void Prepared::describe(Collective collective, const at::Tensor& tensor) noexcept {
  call.collective = collective;
  call.dtype = to_dtype(tensor.scalar_type());
  call.count = count_of(tensor);
}

void Prepared::reduce_by(const Reduction& reduction) {
  call.op = reduction.op;
  call.factor = reduction.factor;
  if (!reduction.device_factor.defined()) return;
  device_factor_ = reduction.device_factor;
  call.device_factor = device_factor_.const_data_ptr();
}

void Prepared::append_kept(std::vector<at::Tensor>& tensors) const {
  tensors.insert(tensors.end(), kept_.begin(), kept_.end());
  for (const auto& [target, temporary] : targets_) tensors.push_back(temporary);
}

void Prepared::write_back() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const Segment& segment : segments_) std::memcpy(segment.target, segment.source, segment.bytes);
  for (auto& [target, temporary] : targets_) target.copy_(temporary);
}

}  // namespace tutti::face
