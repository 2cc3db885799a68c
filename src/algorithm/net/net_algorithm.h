// What the algorithms over messages have in common.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>

#include "algorithm/built_in_algorithm.h"
#include "algorithm/net/net_call.h"
#include "device/cpu/kernels.h"

namespace tutti {

class NetAlgorithm : public BuiltInAlgorithm {
 public:
  using BuiltInAlgorithm::BuiltInAlgorithm;
  const char* refusal(const CallShape&) const noexcept override { return nullptr; }

  Outcome run(const Call& call, CallContext& context) const noexcept final {
    try {
      return execute(call, context);
    } catch (const std::bad_alloc&) {
      return {Status::kExhausted, context.rank};
    }
  }

 protected:
  // Returns with no op of the call posted. What it takes of memory it takes before its first message; std::bad_alloc
  // where that was not there beforehand (call_memory.h).
  virtual Outcome execute(const Call& call, CallContext& context) const = 0;
};

// True if a partial result cannot be sent without rounding it: then an algorithm must bring all inputs together and
// reduce them at once.
inline bool rounds_partials(DataType dtype, ReduceOp op) noexcept {
  const bool arithmetic =
      op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kProduct || op == ReduceOp::kPremulSum;
  const bool narrow = dtype == DataType::kComplex32 || (is_floating(dtype) && size_of(dtype) < 4);
  return arithmetic && narrow;
}
inline const char* refuse_rounding(const CallShape& shape) noexcept {
  return rounds_partials(shape.dtype, shape.op) ? "partial sums of a narrow type would be rounded at every rank"
                                                : nullptr;
}

// dst = a op b, in this order; divided at the end of an average only.
inline void combine(const Call& call, void* dst, const void* a, const void* b, std::size_t bytes,
                    int divisor) noexcept {
  const void* const sources[2] = {a, b};
  cpu::reduce(&dst, 1, sources, 2, bytes / size_of(call.dtype), call.dtype, call.op, divisor);
}

// A message travels along a tree in segments, so that one is received while the one before is sent on. An empty message
// has one empty segment.
inline constexpr std::size_t kSegmentBytes = 256 * 1024;  // a multiple of 64: no element is cut

struct Segments {
  std::size_t bytes;

  explicit Segments(std::size_t total) noexcept : bytes(total) {}
  std::size_t count() const noexcept { return std::max<std::size_t>(1, (bytes + kSegmentBytes - 1) / kSegmentBytes); }
  std::size_t begin(std::size_t k) const noexcept { return std::min(bytes, k * kSegmentBytes); }
  std::size_t size(std::size_t k) const noexcept { return begin(k + 1) - begin(k); }
};

}  // namespace tutti
