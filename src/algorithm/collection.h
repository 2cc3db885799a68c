// All algorithms that a communicator may use, and the choice among them.
//
// Thread rule: built once, then const and shared.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "algorithm/algorithm.h"

namespace tutti {

// A rule of the tuning table: for calls of `collective` up to `max_bytes` prefer the algorithm of this name.
struct TuningRule {
  Collective collective;
  std::size_t max_bytes;
  std::string algorithm;
};

class AlgorithmCollection {
 public:
  // The library's own, in order of preference.
  static std::shared_ptr<const AlgorithmCollection> defaults();

  // Adds to the end of the preference, or to its front.
  void add(std::shared_ptr<const Algorithm> algorithm);
  void prefer(std::vector<std::shared_ptr<const Algorithm>> algorithms);

  const std::vector<std::shared_ptr<const Algorithm>>& of(Collective collective) const noexcept {
    return by_collective_[static_cast<std::size_t>(collective)];
  }

 private:
  std::array<std::vector<std::shared_ptr<const Algorithm>>, kCollectiveCount> by_collective_;
};

// Chooses by what all ranks know equally: a forced choice first, then the tuning rules, then the order of preference;
// always the first that does not refuse the shape.
class Selector {
 public:
  // `forced` is TUTTI_ALGORITHM: "all_reduce=ring,all_gather=staged", or a name alone for all collectives that have
  // it. Throws Error(kInvalidArgument) naming what it does not know and what there is.
  Selector(std::shared_ptr<const AlgorithmCollection> collection, std::vector<TuningRule> rules,
           std::string_view forced);

  // Null only if no algorithm fits.
  const Algorithm* select(const CallShape& shape) const noexcept;

  // Every candidate with the reason for or against it, a line each.
  std::string explain(const CallShape& shape) const;

 private:
  void force(std::string_view item);

  std::shared_ptr<const AlgorithmCollection> collection_;
  std::array<std::vector<TuningRule>, kCollectiveCount> rules_;  // ascending by size
  std::array<const Algorithm*, kCollectiveCount> forced_{};
};

}  // namespace tutti
