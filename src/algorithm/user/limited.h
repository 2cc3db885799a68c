// An algorithm within the limits that its user has set.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "algorithm/algorithm.h"
#include "tutti/user_algorithm.h"

namespace tutti {

// Null, or why a call is outside.
inline const char* limits_refusal(const AlgorithmLimits& limits, const CallShape& shape) noexcept {
  if (limits.ranks != 0 && shape.ranks != limits.ranks) return "is for another number of ranks";
  if (shape.bytes < limits.min_bytes || shape.bytes > limits.max_bytes) return "is for messages of other sizes";
  return nullptr;
}

class LimitedAlgorithm final : public Algorithm {
 public:
  LimitedAlgorithm(std::shared_ptr<const Algorithm> algorithm, const AlgorithmLimits& limits) noexcept
      : algorithm_(std::move(algorithm)), limits_(limits) {}

  std::string_view name() const noexcept override { return algorithm_->name(); }
  Collective collective() const noexcept override { return algorithm_->collective(); }
  std::string_view summary() const noexcept override { return algorithm_->summary(); }
  bool announces() const noexcept override { return algorithm_->announces(); }
  const char* refusal(const CallShape& shape) const noexcept override {
    const char* reason = limits_refusal(limits_, shape);
    return reason != nullptr ? reason : algorithm_->refusal(shape);
  }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return algorithm_->memory(call, context);
  }
  Outcome run(const Call& call, CallContext& context) const noexcept override { return algorithm_->run(call, context); }

 private:
  const std::shared_ptr<const Algorithm> algorithm_;
  const AlgorithmLimits limits_;
};

}  // namespace tutti
