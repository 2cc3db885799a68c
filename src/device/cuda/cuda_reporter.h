// What the plug-in for CUDA has beside what all devices have; Device& is cast to it.
#pragma once

#include <cstdint>

#include "tutti/cuda/report.h"

namespace tutti::cuda {

class CudaReporter {
 public:
  virtual ~CudaReporter() = default;
  // What there is of such devices here. Throws nothing for what it finds.
  virtual CudaReport report() = 0;
  // For tests: where communicators that are made from now on begin to count, near the wrap of a flag.
  virtual void begin_at(std::uint64_t first_sequence) noexcept = 0;
};

}  // namespace tutti::cuda
