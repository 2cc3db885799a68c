// What differs between the PyTorch versions that Tutti builds against (2.11 to 2.13), in one place.
#pragma once

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tutti::face {

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13)
using PremulSumSupplement = c10d::PreMulSumSupplement;
inline constexpr c10d::OpType kReduceScatterTensorCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
using PremulSumSupplement = c10d::NCCLPreMulSumSupplement;
inline constexpr c10d::OpType kReduceScatterTensorCoalesced = c10d::OpType::COALESCED;
#endif

}  // namespace tutti::face
