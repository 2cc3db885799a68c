// Chains of mutants: a single change of a base plan, and further ones heaped on top, each mutant judged and permuted.
//
// A chain is known by its number alone: which single change it begins with (number modulo how many there are, so that
// consecutive numbers take all of them in turn), and what is drawn after that.
//
// Thread rule: const; several threads may follow chains of one object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/explorer/base_plans.h"
#include "plan/explorer/campaign.h"
#include "plan/explorer/mutations.h"
#include "plan/explorer/search.h"

namespace tutti::plan::explorer {

class Chains {
 public:
  // `steps` further changes on top of the first.
  Chains(const std::vector<BasePlan>& bases, std::size_t steps);

  // How many single changes there are.
  std::size_t changes() const { return firsts_.size(); }

  void follow(std::uint64_t number, Limits limits, Tally& tally) const;

 private:
  struct First {
    std::size_t base = 0;
    Mutation mutation;
  };

  std::vector<BasePlan> bases_;  // as they come from files
  std::vector<First> firsts_;
  std::size_t steps_;
};

}  // namespace tutti::plan::explorer
