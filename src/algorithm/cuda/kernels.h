// The compiled kernels, by what they do. All take (DeviceWorld, args) by value; blocks and threads are the choice's,
// plus the control warp.
#pragma once

#include <vector>

#include "algorithm/cuda/add_rms_norm_args.h"
#include "algorithm/cuda/choice.h"
#include "algorithm/cuda/quantized_args.h"

namespace tutti::cuda {

// The reductions that have kernels of their own; everything else goes to kAny.
enum class Reducer { kSumF32, kSumBf16, kSumF16, kAny };
Reducer reducer_of(DataType dtype, ReduceOp op) noexcept;

// Those over packets and plans, compiled ones too, begin with await_preceding(); no other does.

// `reducer` counts unless the pattern is kCopy.
const void* kernel_of(Protocol protocol, Pattern pattern, Reducer reducer) noexcept;
// LL over UniformArgs, for groups of `size`, 2 or more; `reduce` tells whether the collective reduces.
const void* uniform_kernel(bool reduce, Reducer reducer, int size) noexcept;
// Over DirectArgs; null for a collective that has none.
const void* direct_kernel(Collective collective, Reducer reducer) noexcept;
// Over executor::PlanArgs.
const void* plan_kernel_of(Reducer reducer) noexcept;
// Over MeetArgs.
const void* meet_kernel() noexcept;
// Over AddRmsNormArgs, for bf16, fp16 and fp32. `aligned`: all memory, to 16 bytes.
const void* add_rms_norm_kernel_of(bool aligned, DataType dtype) noexcept;
// The same types. Takes AddRmsNormArgs alone, and no control warp; `vectors` of 16 bytes a thread holds, one of
// kNormVectors.
const void* norm_kernel_of(int vectors, DataType dtype) noexcept;
// Over QuantizedArgs, for the same types.
const void* quantized_kernel_of(QuantizedPattern pattern, DataType dtype) noexcept;
// Over FewMessages or ManyMessages.
const void* message_kernel(bool many) noexcept;
const void* probe_kernel() noexcept;
// Takes TwinArgs alone.
const void* twin_kernel() noexcept;

// Every kernel there is: all are loaded before the first call, because loading one beside a kernel that waits for a
// peer would wait for that kernel.
std::vector<const void*> all_kernels();

}  // namespace tutti::cuda
