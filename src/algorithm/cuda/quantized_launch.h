// Which kernel of quantized.cuh runs a call, and what it is told. Depends, as choice.h, only on what all ranks know
// equally.
#pragma once

#include <optional>
#include <string>

#include "algorithm/cuda/choice.h"
#include "algorithm/cuda/quantized_args.h"
#include "tutti/serving.h"

namespace tutti::cuda {

// Throws Error(kInvalidArgument).
void check_quantized(const QuantizedAllReduce& call);

struct QuantizedLaunch {
  QuantizedPattern pattern = QuantizedPattern::kBulk;
  int blocks = 1;
  int threads = 512;   // workers
  QuantizedArgs args;  // without the fingerprint
};
// The protocol of `forced` counts where its kernel takes the call; there is none over LL128.
QuantizedLaunch make_quantized_launch(const QuantizedAllReduce& call, int size, int most_blocks,
                                      const std::optional<ForcedChoice>& forced);

// "ll_one_shot@4x128", as to_string(Choice).
std::string to_string(const QuantizedLaunch& launch);
// The same for name_of().
Choice choice_of(const QuantizedLaunch& launch) noexcept;

}  // namespace tutti::cuda
