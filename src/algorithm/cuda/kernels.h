// The compiled kernels, by what they do. All take (DeviceWorld, args) by value; blocks and threads are the choice's,
// plus the control warp.
#pragma once

#include <vector>

#include "algorithm/cuda/choice.h"

namespace tutti::cuda {

// The reductions that have kernels of their own; everything else goes to kAny.
enum class Reducer { kSumF32, kSumBf16, kSumF16, kAny };
Reducer reducer_of(DataType dtype, ReduceOp op) noexcept;

// For cudaLaunchKernel. `reducer` counts unless the pattern is kCopy.
const void* kernel_of(Protocol protocol, Pattern pattern, Reducer reducer) noexcept;
// LL over UniformArgs; `reduce` tells whether the collective reduces.
const void* uniform_kernel(bool reduce, Reducer reducer) noexcept;
// Over DirectArgs; null for a collective that has none.
const void* direct_kernel(Collective collective, Reducer reducer) noexcept;
// Over MeetArgs.
const void* meet_kernel() noexcept;
const void* message_kernel() noexcept;
const void* probe_kernel() noexcept;

// Every kernel there is: all are loaded before the first call, because loading one beside a kernel that waits for a
// peer would wait for that kernel.
std::vector<const void*> all_kernels();

}  // namespace tutti::cuda
