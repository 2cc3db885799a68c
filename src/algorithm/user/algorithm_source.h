// What a UserAlgorithm is to the library: where the algorithm that a communicator runs is made. All that
// plan_algorithm(), plugin_algorithms() and library_algorithm() return are such.
//
// Thread rule: const after construction, shared.
#pragma once

#include <memory>

#include "algorithm/algorithm.h"
#include "algorithm/group_place.h"
#include "algorithm/plan/plan_files.h"
#include "tutti/user_algorithm.h"

namespace tutti {

class AlgorithmSource : public UserAlgorithm {
 public:
  // For the communicator of `world`, which outlives it. Throws Error(kInvalidArgument, kUnsupported) saying why it
  // cannot run there.
  virtual std::shared_ptr<const Algorithm> make(const GroupPlace& world) const = 0;
  // Of a plan, which devices other than CPUs run by themselves; null for all else.
  virtual const PlanFile* plan_file() const noexcept { return nullptr; }

 protected:
  using UserAlgorithm::UserAlgorithm;
};

// The plan of a file that has been proven (load_plans), as an algorithm like those that a program gives.
UserAlgorithmPtr plan_algorithm(const PlanFile& file);

}  // namespace tutti
