// Device::reduce for CUDA: reductions of buffers on one device.
#pragma once

#include <cstddef>

#include "tutti/types.h"

namespace tutti::cuda {

inline constexpr int kMostSources = 64, kMostDestinations = 16;

// As Device::reduce, on the legacy stream; at most kMostSources sources and kMostDestinations destinations.
void launch_reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
                   DataType dtype, ReduceOp op, int divisor) noexcept;

}  // namespace tutti::cuda
