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
#include "algorithm/tuned_rules.h"

namespace tutti {

class AlgorithmCollection {
 public:
  // The library's own, in order of preference.
  static std::shared_ptr<const AlgorithmCollection> defaults();

  // Adds to the end of the preference, or to its front: what a user has named comes before what was measured.
  void add(std::shared_ptr<const Algorithm> algorithm);
  void prefer(std::vector<std::shared_ptr<const Algorithm>> algorithms);

  const std::vector<std::shared_ptr<const Algorithm>>& of(Collective collective) const noexcept {
    return by_collective_[static_cast<std::size_t>(collective)];
  }
  // How many of of(collective) were given to prefer(): its first ones.
  std::size_t preferred(Collective collective) const noexcept {
    return preferred_[static_cast<std::size_t>(collective)];
  }

 private:
  std::array<std::size_t, kCollectiveCount> preferred_{};
  std::array<std::vector<std::shared_ptr<const Algorithm>>, kCollectiveCount> by_collective_;
};

// Chooses by what all ranks know equally: a forced choice first, then the user's algorithms, then the tuning rules,
// then the order of preference; always the first that does not refuse the shape.
//
// Before the announcements nobody knows whether all ranks' tensors are mapped. Until then the rules for private tensors
// count; and where some tensors of a call are mapped and others not, none does.
class Selector {
 public:
  // `forced` is TUTTI_ALGORITHM: "all_reduce=ring,all_gather=staged", or a name alone for all collectives that have
  // it. Throws Error(kInvalidArgument) naming what it does not know and what there is. Names in `rules` that the
  // collection does not have are passed over.
  Selector(std::shared_ptr<const AlgorithmCollection> collection, std::vector<TuningRule> rules,
           std::string_view forced);

  // Null only if no algorithm fits.
  const Algorithm* select(const CallShape& shape) const noexcept;

  // Every candidate with the reason for or against it, a line each, and what has been measured.
  std::string explain(const CallShape& shape) const;

 private:
  using Rule = TunedRules<const Algorithm*>::Rule;

  void force(std::string_view item);
  void add_rule(TuningRule rule);
  const Rule* rule_for(const CallShape& shape) const noexcept;
  const Algorithm* named(Collective collective, std::string_view name) const noexcept;

  std::shared_ptr<const AlgorithmCollection> collection_;
  TunedRules<const Algorithm*> rules_;
  std::array<const Algorithm*, kCollectiveCount> forced_{};
};

}  // namespace tutti
