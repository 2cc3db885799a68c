// What a UserAlgorithm is to the library: where the algorithm that a communicator runs is made. All that
// plan_algorithm(), plugin_algorithms() and library_algorithm() return are such.
//
// Thread rule: const after construction, shared.
#pragma once

#include <memory>

#include "algorithm/algorithm.h"
#include "algorithm/plan/plan_world.h"
#include "tutti/user_algorithm.h"

namespace tutti {

class AlgorithmSource : public UserAlgorithm {
 public:
  // For the communicator of `world`, which outlives it. Throws Error(kInvalidArgument, kUnsupported) saying why it
  // cannot run there.
  virtual std::shared_ptr<const Algorithm> make(const PlanWorld& world) const = 0;

 protected:
  using UserAlgorithm::UserAlgorithm;
};

}  // namespace tutti
